"""A user's home for the launcher, with a daemon of its own that surely ends with the test."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.main import main
from launcher.daemon import spawn
from launcher.daemon.dirs import Dirs
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView
from launcher.errors import LauncherError, UnreachableError
from tests.launcher.helpers import clean_environment, command_line

Done = subprocess.CompletedProcess[str]


class Home:
    """Directories, and the command run in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = folder / "jobs"
        self.dirs = Dirs(folder / "state", folder / "run")

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        own = {"HVDGRAB_STATE": str(self.dirs.state), "HVDGRAB_RUNTIME": str(self.dirs.runtime), "HVDGRAB_JOBS": str(self.jobs)}
        return clean_environment({**own, **(extra or {})})

    def write(self, name: str, command: list[str], **further: Any) -> str:
        """A job's YAML; JSON is YAML."""
        data = {"name": name, "command": command, "resources": {"ranks": 1, "threads_per_rank": 1}, **further}
        (self.folder / f"{name}.yaml").write_text(json.dumps(data))
        return f"{name}.yaml"

    def python(self, name: str, code: str, *arguments: str, **further: Any) -> str:
        return self.write(name, ["python", "-c", code, *arguments], **further)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command_line(*arguments), cwd=self.folder, env=self.environment(env), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *arguments: str, env: Mapping[str, str] | None = None, seconds: float = 90) -> Done:
        with self.start(*arguments, env=env) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            except BaseException:
                process.kill()
                raise
        assert "Traceback" not in err, err
        return Done(arguments, process.returncode, out, err)

    def call(self, *arguments: str) -> Done:
        """The same in this process, which is quicker: for commands that neither follow nor start anything."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name in ("HVDGRAB_STATE", "HVDGRAB_RUNTIME", "HVDGRAB_JOBS"):
                patch.setenv(name, self.environment()[name])
            patch.chdir(self.folder)
            code = main(arguments)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return Done(arguments, code, *texts)

    def data(self, *arguments: str, code: int = 0) -> Any:
        """What a command says with ``--json``: one document, and nothing else."""
        done = self.call(*arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def detached(self, name: str, code: str, **further: Any) -> dict[str, Any]:
        """A job that was submitted and is not followed."""
        found: dict[str, Any] = self.data(self.python(name, code, **further), "--detach")
        return found

    @property
    def client(self) -> Client:
        """The daemon, which a command must have started: it would else be a child of the tests."""
        return Client.connect(start=False, dirs=self.dirs)

    def until(self, job_id: str, wanted: Callable[[JobView], bool]) -> JobView:
        """The job, once it is as wanted."""
        eventually(lambda: wanted(self.client.job(job_id)))
        return self.client.job(job_id)

    def running(self, name: str) -> str:
        """The id of the job of this name, once it runs."""
        found: list[JobView] = []

        def look() -> bool:
            with suppress(UnreachableError):
                found[:] = self.client.jobs(name=name, state=["running"])
            return bool(found)

        eventually(look)
        return found[0].id

    def pid(self) -> int:
        return self.client.status().pid


def eventually(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def end_daemon(folder: Path) -> None:
    """End the jobs of a home's daemon, then the daemon, however it is: whatever carries the home in its environment."""
    dirs = Dirs(folder / "state", folder / "run")
    with suppress(LauncherError):
        client = Client.connect(start=False, dirs=dirs)
        for view in client.jobs():
            if not view.final:
                client.cancel(view.id)
        spawn.stop(dirs)
    for pid in processes_of(dirs):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_of(dirs: Dirs) -> list[int]:
    """Processes that were started with this home."""
    mark = f"HVDGRAB_STATE={dirs.state}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


@contextmanager
def new_home() -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="hvdgrab-home-", dir="/tmp"))  # a socket's path must be short
    try:
        yield Home(folder)
    finally:
        end_daemon(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """One for all tests of a file: they use jobs of different names."""
    with new_home() as made:
        assert made.run("daemon", "start").returncode == 0
        yield made


@pytest.fixture
def own_home() -> Iterator[Home]:
    """One for a single test, which may do to the daemon what it likes."""
    with new_home() as made:
        yield made

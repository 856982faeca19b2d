"""A real daemon in a directory of its own, with real jobs of one local rank."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.attempt.sweep import sweep
from launcher.daemon import spawn
from launcher.daemon.dirs import Dirs
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView, Submission
from launcher.errors import LauncherError
from launcher.host.processes import start_ticks
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.variables import CRASH_AT
from launcher.plan import facts
from tests.launcher.daemon.kit import job_directory
from tests.launcher.helpers import clean_environment


class RealDaemon:
    """Directories, and whatever daemon runs in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hvd-"))  # pytest's own is too long for a socket
        self.dirs = Dirs(self.folder / "state", self.folder / "run")
        self.facts = facts.collect()
        self.ids: list[str] = []
        monkeypatch.setenv("HVDGRAB_STATE", str(self.dirs.state))
        monkeypatch.setenv("HVDGRAB_RUNTIME", str(self.dirs.runtime))
        monkeypatch.setenv("HVDGRAB_CPUS", "64")
        monkeypatch.delenv(CRASH_AT, raising=False)

    def start(self, crash_at: str | None = None) -> int:
        """Start a daemon, where told one that ends at a step; returns its process id."""
        if crash_at is not None:
            os.environ[CRASH_AT] = crash_at
        try:
            return spawn.start(self.dirs)
        finally:
            os.environ.pop(CRASH_AT, None)

    def client(self, start: bool = True) -> Client:
        return Client.connect(start, self.dirs)

    def kill(self) -> None:
        """End the daemon as a power failure would."""
        pid = self.client(start=False).status().pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: start_ticks(pid) is None, "the daemon's death")

    def write(self, name: str, code: str, *arguments: str, **sections: Any) -> Submission:
        """A job directory for a Python program, not yet handed over."""
        job = job_directory(self.folder / "jobs", name, self.facts, command=["python", "-c", code, *arguments], **sections)
        self.ids.append(job.id)
        return Submission(job.id, str(job.root), clean_environment())

    def submit(self, name: str, code: str, *arguments: str, **sections: Any) -> str:
        return self.client().submit(self.write(name, code, *arguments, **sections)).id

    def paths(self, job_id: str) -> JobPaths:
        return JobPaths(self.folder / "jobs" / job_id)

    def wait(self, job_id: str, seconds: float = 60.0) -> JobView:
        view = self.client().wait(job_id, seconds)
        assert view.final, (view, self.dirs.log.read_text()[-2000:])
        return view

    def close(self) -> None:
        """End all of it."""
        try:
            spawn.stop(self.dirs)
        except LauncherError:
            self.kill()
        for job_id in self.ids:
            sweep(job_id, 0.0)
        shutil.rmtree(self.folder, ignore_errors=True)


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {seconds:.0f} s"
        time.sleep(0.02)


def run_daemon(*, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A daemon in the foreground, as ``daemon run`` makes one."""
    program = "import sys; from launcher.daemon import dirs, spawn; sys.exit(spawn.run(dirs.Dirs.of_user()))"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

"""What another user of the host can do with a user's daemon and jobs: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.launcher.daemon.real import RealDaemon, until
from tests.real import ROOT, need

NOBODY = 65534
AS_NOBODY = f"""
import contextlib, io, json, os, pkgutil, sys
import difflib, http.client, launcher, pydantic, sqlite3, urllib.parse, yaml
import encodings.ascii, encodings.idna, encodings.latin_1, encodings.utf_8_sig
for found in pkgutil.walk_packages(launcher.__path__, "launcher."):
    if "bootstrap" not in found.name and "__main__" not in found.name:
        __import__(found.name)
from launcher.cli.main import main
os.chdir("/")
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["validate", sys.argv[2], "--set", "resources.allow_root=true"]) == 0  # loads what is loaded late
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
"""Commands of a user who can perhaps not even read this Python's files: all modules are loaded before."""
STAY = "import time; print('up', flush=True); time.sleep(600)"


def as_nobody(daemon: RealDaemon, file: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", "HVDGRAB_JOBS": str(daemon.folder / "jobs")}
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, json.dumps(commands), str(file)],
        env=environment, cwd="/", capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture
def busy(daemon: RealDaemon) -> tuple[RealDaemon, str]:
    """A daemon with a running job, below a directory that others may look into."""
    need("the right to become another user", os.geteuid() == 0)
    daemon.folder.chmod(0o755)
    daemon.start()
    job = daemon.submit("mine", STAY)
    until(lambda: daemon.client().job(job).state == "running", "the start")
    return daemon, job


def test_another_user_can_neither_read_nor_submit_nor_cancel_with_the_command(busy: tuple[RealDaemon, str]) -> None:
    daemon, job = busy
    with tempfile.TemporaryDirectory(prefix="hvd-") as folder:
        Path(folder).chmod(0o777)
        file = Path(folder) / "theirs.yaml"
        file.write_text(json.dumps({"command": ["true"], "resources": {"ranks": 1}}))
        reading = [["ls"], ["show", job], ["events", job], ["daemon", "status"]]
        changing = [["cancel", job], ["retry", job], ["wait", job], ["daemon", "stop"], [str(file), "--jobs-dir", folder]]
        answers = as_nobody(daemon, file, *reading, *changing)
    assert len(answers) == 9
    for code, out, err in answers[:4]:
        assert (code, "mine" in out, str(daemon.folder) in err) == (3, False, True), (out, err)
    for code, out, err in answers[4:]:
        assert code == 3, (out, err)
        assert "belongs to user 0, not to you" in err or "Permission denied" in err
    assert daemon.client().job(job).state == "running"
    assert [view.id for view in daemon.client().jobs()] == [job]


def test_another_user_reaches_no_file_of_the_daemon_and_writes_none_of_a_job(busy: tuple[RealDaemon, str]) -> None:
    daemon, job = busy
    paths = daemon.paths(job)
    program = f"""
import os, sys
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
for path in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT):
        try:
            os.close(os.open(path, flags))
        except OSError:
            continue
        print("write" if flags else "read", path)
"""
    secret = daemon.dirs.environments / f"{job}.json"
    spooled = daemon.dirs.spool / "theirs.yaml"
    private = [daemon.dirs.record, daemon.dirs.log, daemon.dirs.lock, secret, spooled]
    of_job = [paths.cancel, paths.plan, paths.events, paths.attempt(1).stop, paths.attempt(1).plan, paths.attempt(2).root]
    command = [sys.executable, "-c", program, *map(str, [*private, *of_job])]
    opened = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout.splitlines()
    assert secret.exists()
    assert not [line for line in opened if line.startswith("write") or Path(line.split()[1]) in private]

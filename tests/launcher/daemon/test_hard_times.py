"""A real daemon on a disk that is full, whose record is locked, and that is replaced by one of another version."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.daemon import spawn
from launcher.errors import UnreachableError
from tests.launcher.daemon.real import RealDaemon, until
from tests.real import need

WAIT = "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nsys.exit(5)"
SMALL = 1 << 20


@pytest.fixture
def full_daemon(daemon: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealDaemon]:
    """Its state directory is a file system of 1 MiB; the jobs' directories are elsewhere."""
    need("root", os.geteuid() == 0)
    daemon.dirs.state.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=700", "none", daemon.dirs.state], check=False)
    need("a file system in memory", mounted.returncode == 0)
    yield daemon
    with contextlib.suppress(UnreachableError):
        spawn.stop(daemon.dirs)
    subprocess.run(["umount", "-l", daemon.dirs.state], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    number = os.open(filler, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(number, b"x" * 4096)
    except OSError:
        os.close(number)
    return filler


def test_a_full_disk_under_the_record_loses_nothing_and_is_named_everywhere(full_daemon: RealDaemon) -> None:
    daemon, gate = full_daemon, full_daemon.folder / "gate"
    daemon.start()
    job = daemon.submit("before", WAIT, str(gate))
    until(lambda: daemon.client().job(job).state == "running", "the start")
    filler = fill(daemon.dirs.state)
    words = r"record\.sqlite cannot be written: the disk is full"
    refused = [daemon.write(f"refused{number}", "pass") for number in range(20)]
    with pytest.raises(UnreachableError, match=f"{words}; free space in {daemon.dirs.state}"):
        for submission in refused:  # the log that is there takes some
            daemon.client().submit(submission)
    time.sleep(1.5)  # a tick of the engine, which has nothing to write
    assert "the disk is full" in str(daemon.client().status().problem)
    listed = subprocess.run([sys.executable, "-m", "launcher", "ls"], capture_output=True, text=True, timeout=60, check=True)
    assert "warning: the daemon is kept from its work: the record" in listed.stderr
    gate.touch()
    until(lambda: daemon.paths(job).attempt(1).end.exists(), "the end")
    until(lambda: daemon.client().status().problem is not None, "the daemon's notice of it")
    assert "the disk is full" in str(daemon.client().status().problem)
    assert daemon.client().job(job).state == "running", "what cannot be written down has not happened"
    with pytest.raises(UnreachableError, match=f"{job} was asked to end, and the record can note that only later: .*{words}"):
        daemon.client().cancel(job)
    assert daemon.paths(job).cancel.exists()
    filler.unlink()
    view = daemon.wait(job)
    assert (view.state, view.exit_code) == ("failed", 5), "its end came before the wish to cancel it"
    until(lambda: daemon.client().status().problem is None, "the end of the problem")
    assert daemon.wait(daemon.submit("after", "raise SystemExit(6)")).exit_code == 6
    assert {view.id for view in daemon.client().jobs(name="before")} == {job}


@pytest.mark.soak  # a sample: tests/launcher/daemon/test_engine.py::test_a_locked_record_refuses_a_submission_and_names_the_cause
def test_a_locked_record_is_named_and_waited_for(daemon: RealDaemon) -> None:
    daemon.start()
    job = daemon.submit("brief", "raise SystemExit(3)")
    daemon.wait(job)
    other = sqlite3.connect(daemon.dirs.record, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(UnreachableError, match=r"record\.sqlite is locked by another program.* not released within 5 s"):
            daemon.client().retry(job, {})
        assert daemon.client().job(job).state == "failed", "reading goes on"
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert daemon.client().retry(job, dict(os.environ)).state == "queued"
    assert daemon.wait(job).exit_code == 3


OLD = """
import sys
import hvdgrab
hvdgrab.__version__ = "0.0.1"
from launcher.daemon import dirs, spawn
sys.exit(spawn.run(dirs.Dirs.of_user()))
"""


def test_a_daemon_of_another_version_is_replaced_while_jobs_run(daemon: RealDaemon) -> None:
    old = subprocess.Popen([sys.executable, "-c", OLD], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: spawn.listens(daemon.dirs, 0.0), "the old one")
    gate = daemon.folder / "gate"
    running = daemon.submit("running", WAIT, str(gate))
    between = daemon.submit("between", WAIT, str(gate), restart={"failure": 1, "backoff": "3s", "jitter": 0})
    until(lambda: all(daemon.client().job(job).state == "running" for job in (running, between)), "the start")
    waiting = daemon.submit("waiting", "raise SystemExit(4)", depends_on=[])
    status = subprocess.run(
        [sys.executable, "-m", "launcher", "daemon", "status"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "version 0.0.1" in status.stdout
    assert "`hvdgrab-launch daemon restart` brings the daemon to it" in status.stdout
    assert spawn.stop(daemon.dirs) is True
    assert old.wait(30) == 0
    gate.touch()
    until(lambda: daemon.paths(between).attempt(1).end.exists(), "an end while no daemon lived")
    assert daemon.start() != old.pid
    assert daemon.client().status().version != "0.0.1"
    ends = {job: daemon.wait(job) for job in (running, between, waiting)}
    assert {job: (view.state, view.exit_code) for job, view in ends.items()} == {
        running: ("failed", 5), between: ("failed", 5), waiting: ("failed", 4)
    }  # fmt: skip
    assert (ends[running].attempts, ends[between].attempts) == (1, 2)
    assert daemon.paths(running).rank_log(0).read_bytes().count(b"up") == 1


@pytest.mark.soak  # a sample: tests/launcher/daemon/test_record.py::test_what_is_no_usable_record_is_refused_with_the_cause
def test_a_record_of_a_newer_version_is_left_alone(daemon: RealDaemon) -> None:
    daemon.start()
    spawn.stop(daemon.dirs)
    connection = sqlite3.connect(daemon.dirs.record)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(UnreachableError, match="has version 99.*use the newer release that wrote it"):
        daemon.start()
    connection = sqlite3.connect(daemon.dirs.record)
    connection.execute("PRAGMA user_version=1")
    connection.close()

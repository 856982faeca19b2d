"""Nothing of a job is left, whatever is killed and however its processes hide."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.host import processes
from launcher.jobdir import words
from launcher.jobdir.claim import Claim
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.marks import read_marks
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.stop import Stop
from tests.launcher import mpis
from tests.launcher.attempts import job_of, python, supervise, until, with_token

HIDING = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
sleep = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(120)"
subprocess.Popen([sys.executable, "-c", sleep, sys.argv[1]], start_new_session=True, **quiet)
again = "import os, sys, subprocess; os.setsid(); os.fork() and os._exit(0); " + sleep
subprocess.Popen(["env", "-i", sys.executable, "-c", again, sys.argv[1]], **quiet).wait()
print("up", flush=True)
time.sleep(120)
"""
"""A rank that ignores TERM, with a child in a session of its own, and an orphan without any environment."""
VICTIMS = ("cancel", "interrupt", "mpirun", "wrapper", "keeper", "both", "supervisor", "supervisor and wrapper", "program")


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobPaths]:
    token = f"token-{random.SystemRandom().getrandbits(64):x}"
    made = job_of(tmp_path, python(HIDING, token), backend={"mpirun": mpis.find("openmpi4")})
    yield made
    for pid in with_token(token):
        os.kill(pid, signal.SIGKILL)


def token_of(job: JobPaths) -> str:
    return job.plan.read_text().split("token-")[1].split('"')[0]


def kill(job: JobPaths, supervisor: int, victim: str) -> None:
    mark = read_marks(job.attempt(1), 2)[1]
    assert mark is not None
    wrapper = processes.read_process(mark.wrapper_pid)
    assert wrapper is not None
    (mpirun,) = [entry.pid for entry in processes.table().values() if entry.parent == supervisor]
    if victim == "cancel":
        job.cancel.touch()
        Stop(words.CANCELLED, "a test").write(job.attempt(1))
    pids = {
        "mpirun": [mpirun],
        "wrapper": [wrapper.parent],
        "keeper": [mark.wrapper_pid],
        "both": [wrapper.parent, mark.wrapper_pid],
        "supervisor and wrapper": [supervisor, wrapper.parent],
        "program": [mark.pid],
    }.get(victim, [supervisor])
    number = {"cancel": signal.SIGTERM, "interrupt": signal.SIGINT}.get(victim, signal.SIGKILL)
    for pid in pids:
        assert pid is not None
        os.kill(pid, number)


def check(job: JobPaths, victim: str) -> None:
    process = supervise(job, env={"HVDGRAB_HEARTBEAT_SECONDS": "2"})  # a busy machine is no hang
    logs = [job.rank_log(rank) for rank in (0, 1)]
    until(lambda: all(log.exists() and b"up" in log.read_bytes() for log in logs), "the start of all processes")
    token = token_of(job)
    assert len(with_token(token)) == 6, "two programs with two hidden processes each"
    assert Claim.read(job.attempt(1)) is not None
    kill(job, process.pid, victim)
    process.communicate(timeout=60)
    until(lambda: not with_token(token) and not with_token(job.id), f"the end of everything after the end of {victim}", 15)
    end = AttemptEnd.read(job.attempt(1))
    if victim.startswith("supervisor"):
        assert end is None
        return
    assert end is not None
    expected = {"cancel": ("cancelled", 130), "interrupt": ("failed", 143)}.get(victim, ("failed", 137))
    assert (end.state, end.exit_code, end.remaining) == (*expected, ())
    assert process.returncode == end.exit_code


@pytest.mark.parametrize("victim", ["cancel", "mpirun", "keeper", "supervisor"])
def test_nothing_is_left(job: JobPaths, victim: str) -> None:
    check(job, victim)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("victim", VICTIMS)
def test_nothing_is_left_ever(job: JobPaths, victim: str, number: int) -> None:
    check(job, victim)

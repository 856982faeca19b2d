"""The daemon is killed again and again while jobs are in flight: none is lost, none is started twice, every end is right."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass

import pytest

from launcher.attempt.sweep import marked
from launcher.daemon import spawn
from launcher.daemon.context import CRASH_STEPS
from launcher.errors import UnreachableError
from launcher.host.processes import start_ticks
from tests.launcher.daemon.real import RealDaemon, until

PROGRAM = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["HVDGRAB_JOB_DIR"])
with open(folder / "starts", "a") as file:
    file.write(os.environ["HVDGRAB_ATTEMPT"] + "\\n")
time.sleep(float(sys.argv[1]))
counter = folder / "counter"
count = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(count))
pathlib.Path(os.environ["HVDGRAB_PROGRESS"]).touch()
sys.exit(int(sys.argv[2]) if count >= int(sys.argv[3]) else 9)
"""
"""A training that resumes from its own file: it ends with its code when it has counted far enough, before that with 9."""
SAMPLE = ("submit-recorded", "start-recorded", "start-spawned", "start-confirmed", "end-recorded", "close-noted", None)


@dataclass(frozen=True)
class Expected:
    """What a job's end must be."""

    state: str
    code: int
    attempts: int


class Storm:
    """Jobs of every kind under a daemon that does not live long."""

    def __init__(self, daemon: RealDaemon, seed: int, seconds: tuple[float, float]) -> None:
        self.daemon = daemon
        self.random = random.Random(seed)
        self.seconds = seconds
        self.expected: dict[str, Expected] = {}
        self.kills = 0

    def submit(self, number: int) -> None:
        """Hand over the next job; a daemon that dies meanwhile is started anew by the client."""
        kind = number % 5
        code = (0, 3, 0, 4, 0)[kind]
        target = 3 if kind in (2, 3) else 1
        length = "600" if kind == 4 else f"{self.random.uniform(*self.seconds):.2f}"
        submission = self.daemon.write(
            f"j{number}", PROGRAM, length, str(code), str(target), restart={"failure": target - 1, "backoff": "0s"}
        )
        self.daemon.client().submit(submission)
        end = Expected("cancelled", 130, 1) if kind == 4 else Expected("failed" if code else "succeeded", code, target)
        self.expected[submission.id] = end
        if kind == 4:
            self.daemon.client().cancel(submission.id)

    def strike(self, step: str | None) -> None:
        """Let the daemon die at a step, or at a random moment."""
        with contextlib.suppress(UnreachableError):
            spawn.stop(self.daemon.dirs)
        pid = None
        with contextlib.suppress(UnreachableError):  # it may have died before it was ready
            pid = self.daemon.start(None if step is None else f"{step}:{self.random.randint(1, 2)}")
        if step is None and pid is not None:
            time.sleep(self.random.uniform(0.0, 0.8))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            until(lambda: start_ticks(pid) is None, "the daemon's death")
            self.kills += 1

    def in_flight(self) -> int:
        """Jobs that have not ended; asked again where the daemon dies over the question."""
        for _ in range(20):
            with contextlib.suppress(UnreachableError):
                return sum(not view.final for view in self.daemon.client().jobs())
        raise AssertionError("no daemon lives long enough to answer")

    def settle(self, seconds: float) -> None:
        """Let everything come to its end under a daemon that lives."""
        end = time.monotonic() + seconds
        for job_id in self.expected:
            self.daemon.wait(job_id, max(1.0, end - time.monotonic()))

    def check(self) -> None:
        views = {view.id: view for view in self.daemon.client().jobs()}
        assert set(views) == set(self.expected), "no job is lost, and none came from nowhere"
        for job_id, wanted in self.expected.items():
            view = views[job_id]
            starts = self.daemon.paths(job_id).root / "starts"
            lines = starts.read_text().split() if starts.exists() else []
            assert len(lines) == len(set(lines)), f"{job_id}: an attempt was started twice: {lines}"
            assert (view.state, view.exit_code) == (wanted.state, wanted.code), view
            if wanted.state != "cancelled":
                assert lines == [str(number) for number in range(1, wanted.attempts + 1)], (job_id, lines)
                assert view.attempts == wanted.attempts
            assert [event["event"] for event in self.daemon.client().events(job_id)].count("finished") == 1
            assert marked(job_id) == []
        assert list(self.daemon.dirs.environments.iterdir()) == [], "no environment is kept longer than its job"


def test_a_sample_of_kills_at_named_steps_and_at_random_moments(daemon: RealDaemon) -> None:
    storm = Storm(daemon, 1, (0.1, 0.5))
    for number, step in enumerate(SAMPLE):
        storm.strike(step)
        storm.submit(number)
    storm.settle(60)
    storm.check()
    assert storm.kills == 1


@pytest.mark.soak
def test_two_hundred_kills_with_fifty_jobs_in_flight(daemon: RealDaemon) -> None:
    storm = Storm(daemon, 2, (10.0, 50.0))
    steps = [*CRASH_STEPS, None, None, None, None]
    number = 0
    for round_ in range(200):
        storm.strike(steps[round_ % len(steps)] if not str(steps[round_ % len(steps)]).startswith("spool") else None)
        in_flight = storm.in_flight()
        for _ in range(max(1, min(10, 50 - in_flight))):
            storm.submit(number)
            number += 1
    storm.settle(600)
    storm.check()
    assert storm.kills >= 50

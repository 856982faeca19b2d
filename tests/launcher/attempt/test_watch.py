from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.attempt.watch import LONGEST_GAP, START_SECONDS, Watch, lost_hosts, spec_names
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Plan
from tests.launcher.helpers import plan

MARKS = [RankMark(rank=rank, host=f"node{rank // 2}", wrapper_pid=1, pid=2, heartbeat=1.0) for rank in range(4)]
SECOND = 10**9


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    job = JobPaths(tmp_path / "demo")
    job.create()
    made = job.attempt(1)
    made.create()
    for mark in MARKS:
        mark.write(made.rank_mark(mark.rank))
    return made


def limits(**changes: object) -> Plan:
    made = plan()
    wanted = {"time_limit": None, "hang_after": None, **changes}
    return replace(made, limits=replace(made.limits, **wanted))  # type: ignore[arg-type]


def beat(attempt: AttemptPaths, rank: int, moment: int) -> None:
    os.utime(attempt.rank_mark(rank), ns=(moment * SECOND, moment * SECOND))


def watch(attempt: AttemptPaths, **changes: object) -> Watch:
    return Watch(attempt, limits(**changes), "node0", 0.0)


def test_the_time_limit(attempt: AttemptPaths) -> None:
    clock = watch(attempt, time_limit=90.0)
    assert clock.look(89.0, MARKS) is None
    found = clock.look(90.0, MARKS)
    assert found is not None
    assert (found.cause, found.reason) == ("time_limit", "the time limit of 1 min 30 s was reached")


def test_progress_is_any_change_of_the_trainings_files(attempt: AttemptPaths) -> None:
    clock = watch(attempt, hang_after=20.0)
    assert not clock.progressed
    for now in range(0, 60, 4):
        for rank in range(4):
            beat(attempt, rank, now)
        if now % 12 == 0:
            path = attempt.progress if now % 24 else attempt.job.metrics
            path.touch()
            os.utime(path, ns=(now * SECOND, now * SECOND))
        assert clock.look(float(now), MARKS) is None
    assert clock.progressed
    hang = [clock.look(float(now), MARKS) for now in range(60, 72, 4)]
    assert [None if one is None else one.cause for one in hang] == [None, None, "hang"]


def test_time_in_which_nobody_looked_is_no_hang(attempt: AttemptPaths) -> None:
    clock = watch(attempt, hang_after=20.0)
    clock.look(10.0, MARKS)
    assert clock.look(10_000.0, MARKS) is None
    assert clock.look(10_000.0 + 20.0 - 10.0, MARKS) is None


def test_a_host_of_which_nothing_is_heard_is_lost_and_a_single_rank_hangs(attempt: AttemptPaths) -> None:
    clock = watch(attempt)
    for now in range(0, 60, 4):
        beat(attempt, 0, now)
        beat(attempt, 1, now)
        assert clock.look(float(now), MARKS) is None
    beat(attempt, 0, 100)
    beat(attempt, 1, 100)
    lost = clock.look(64.0, MARKS)
    assert lost is not None
    assert (lost.cause, lost.bad_hosts) == ("lost_node", ("node1",))
    beat(attempt, 2, 100)
    hang = clock.look(64.0, MARKS)
    assert hang is not None
    assert (hang.cause, hang.bad_hosts) == ("hang", ("node1",))
    assert "rank 3 on node1 has shown no sign of life for 1 min 0 s" in hang.reason


def test_marks_that_are_removed_or_ended_are_not_silent(attempt: AttemptPaths) -> None:
    clock = watch(attempt)
    ended = [replace(mark, exit_code=0) for mark in MARKS[:2]]
    attempt.rank_mark(2).unlink()
    attempt.rank_mark(3).unlink()
    for now in range(0, 200, 4):
        assert clock.look(float(now), [*ended, *MARKS[2:]]) is None


def test_that_no_rank_starts_is_noticed(attempt: AttemptPaths) -> None:
    clock = watch(attempt)
    assert clock.look(START_SECONDS - 1, [None] * 4) is None
    found = clock.look(START_SECONDS, [None] * 4)
    assert found is not None
    assert found.cause == "not_started"


def test_hosts_by_their_names(attempt: AttemptPaths) -> None:
    assert lost_hosts(MARKS, {0, 1, 2, 3}, "node0") == ("node1",)
    assert lost_hosts(MARKS, {2}, "node0") == ()
    assert spec_names(("node1", "x"), {"n1.cluster": "node1"}) == ("n1.cluster", "x")
    assert LONGEST_GAP < 60

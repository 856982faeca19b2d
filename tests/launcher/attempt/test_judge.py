from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.attempt.judge import Evidence, judge
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.stop import Stop

START = RankMark(rank=0, host="node1", wrapper_pid=10, pid=11, started=1.0)


def mark(
    rank: int,
    code: int | None = 0,
    *,
    ended: float = 5.0,
    signal: int | None = None,
    stopped: bool = False,
    why: str | None = None,
) -> RankMark:
    over = None if code is None else ended
    return replace(START, rank=rank, signal=signal, stopped=stopped, stop_cause=why, exit_code=code, ended=over)


@pytest.mark.parametrize(
    ("marks", "backend", "state", "code", "words"),
    [
        ([mark(0), mark(1)], 0, "succeeded", 0, ""),
        ([mark(0), mark(1, 7)], 7, "failed", 7, "rank 1 on node1 ended with exit code 7"),
        ([mark(0), mark(1, 7)], 0, "failed", 7, "rank 1 on node1 ended with exit code 7"),
        ([mark(0, 5, ended=3.0), mark(1, 7, ended=2.0)], 5, "failed", 7, "rank 1"),
        ([mark(0, 143, ended=1.0, signal=15, stopped=True), mark(1, 7, ended=2.0)], 7, "failed", 7, "rank 1"),
        ([mark(0, 137, signal=9), mark(1, 143, signal=15, stopped=True)], 137, "failed", 137, "for lack of memory"),
        ([mark(0, 143, signal=15, stopped=True)], 143, "failed", 143, "the program that started the ranks ended by SIGTERM"),
        ([mark(0, 143, signal=15, stopped=True, why="starter_gone")], 1, "failed", 137, "started rank 0 on node1 was killed"),
        ([mark(0, 143, signal=15, stopped=True, why="supervisor_gone")], 0, "failed", 137, "the attempt's supervisor was killed"),
        ([mark(0, 143, signal=15, stopped=True)], 9, "failed", 9, "ended with code 9 before them"),
        ([mark(0), mark(1)], 6, "failed", 6, "every rank ended with 0, but the program that started them ended with 6"),
        ([mark(0), None], 0, "failed", 1, "rank 1 never started"),
        ([None, None], 213, "failed", 213, "ranks 0, 1 never started; the program that should start them ended with 213"),
        ([mark(0), mark(1, None)], 137, "failed", 137, "rank 1 left no exit code"),
        ([mark(0, 143, signal=15, stopped=True), mark(1, None)], 137, "failed", 137, "rank 1 left no exit code"),
        ([mark(0), mark(1, None)], 1, "failed", 137, "rank 1 left no exit code"),
        ([mark(0, 3), mark(1, None, stopped=True)], 1, "failed", 3, "rank 0"),
        ([mark(0, 250, signal=None), mark(1)], 1, "failed", 250, "exit code 250"),
    ],
)
def test_verdicts(marks: list[RankMark | None], backend: int, state: str, code: int, words: str) -> None:
    outcome = judge(Evidence(marks, backend))
    assert (outcome.state, outcome.exit_code) == (state, code)
    assert words in (outcome.reason or "")


def test_an_interrupted_job_is_cancelled_unless_it_was_done() -> None:
    request = Stop("cancelled", "somebody", time=3.0)
    assert judge(Evidence([mark(0, 143, signal=15, stopped=True)], 130, stopped=request)).exit_code == 130
    assert judge(Evidence([None], 0, stopped=request)).state == "cancelled"
    assert judge(Evidence([mark(0)], 0, stopped=request)).state == "succeeded"


@pytest.mark.parametrize(
    ("cause", "marks", "code", "expected"),
    [
        ("hang", [mark(0, 143, signal=15, stopped=True)], 143, ("failed", "hang", 1)),
        ("time_limit", [mark(0, 143, signal=15, stopped=True)], 143, ("failed", "time_limit", 124)),
        ("preemption", [mark(0, 143, signal=15, stopped=True), None], 0, ("failed", "preemption", 143)),
        ("lost_node", [mark(0, 137, signal=9, stopped=True), mark(1, None)], 137, ("failed", "lost_node", 1)),
        ("hang", [mark(0, 7, ended=2.0), mark(1, 143, stopped=True)], 7, ("failed", "failure", 7)),
        ("failure", [mark(0, 7, ended=2.0), mark(1, 143, stopped=True)], 7, ("failed", "failure", 7)),
        ("preemption", [mark(0, stopped=True), mark(1, stopped=True)], 0, ("failed", "preemption", 143)),
        ("preemption", [mark(0), mark(1)], 0, ("succeeded", "finished", 0)),
        ("not_started", [None, None], 137, ("failed", "not_started", 1)),
    ],
)
def test_the_cause_of_a_stop_is_the_cause_of_the_end(
    cause: str, marks: list[RankMark | None], code: int, expected: tuple[str, str, int]
) -> None:
    outcome = judge(Evidence(marks, code, stopped=Stop(cause, "somebody", time=3.0)))
    assert (outcome.state, outcome.cause, outcome.exit_code) == expected


def test_ranks_that_ended_themselves_at_the_time_limit() -> None:
    over = [mark(0, 143, signal=15, stopped=True, why="time_limit"), mark(1, 143, signal=15, stopped=True)]
    assert judge(Evidence(over, 143)).cause == "time_limit"
    assert judge(Evidence([*over, mark(2, 9)], 143)).cause == "failure"


def test_success_needs_the_trainings_own_mark_where_that_is_asked_for() -> None:
    missing = judge(Evidence([mark(0)], 0, finished=False))
    assert (missing.state, missing.cause, missing.exit_code) == ("failed", "failure", 1)
    assert "has not noted that it is finished" in (missing.reason or "")
    assert judge(Evidence([mark(0)], 0, finished=True)).state == "succeeded"
    told = judge(Evidence([mark(0, stopped=True)], 0, finished=False, stopped=Stop("preemption", "somebody")))
    assert (told.state, told.cause) == ("failed", "preemption")
    assert judge(Evidence([mark(0, stopped=True)], 0, finished=True, stopped=Stop("preemption", "x"))).state == "succeeded"
    assert judge(Evidence([mark(0, stopped=True, why="time_limit")], 0, finished=False)).cause == "time_limit"


def test_an_end_is_written_and_read_back(tmp_path: Path) -> None:
    attempt = JobPaths(tmp_path).attempt(3)
    assert AttemptEnd.read(attempt) is None
    attempt.create()
    end = AttemptEnd(3, "failed", "hang", 143, "why", 1, ("n1", "n2"), ("n2",), True, 1.0, 3.5, 2.5, ("n2:77",))
    end.write(attempt)
    assert AttemptEnd.read(attempt) == end
    attempt.end.write_text('{"attempt": 3, "state": "fai')
    assert AttemptEnd.read(attempt) is None

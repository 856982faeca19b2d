from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.outcome import judge
from launcher.process.marks import RankMark

START = RankMark(rank=0, host="node1", wrapper_pid=10, pid=11, started=1.0)


def mark(rank: int, code: int | None = 0, *, ended: float = 5.0, signal: int | None = None, stopped: bool = False) -> RankMark:
    known = {"exit_code": code, "ended": None if code is None else ended}
    return replace(START, rank=rank, signal=signal, stopped=stopped, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("marks", "backend", "state", "code", "words"),
    [
        ([mark(0), mark(1)], 0, "succeeded", 0, ""),
        ([mark(0), mark(1, 7)], 7, "failed", 7, "rank 1 on node1 ended with exit code 7"),
        ([mark(0), mark(1, 7)], 0, "failed", 7, "rank 1 on node1 ended with exit code 7"),
        ([mark(0, 5, ended=3.0), mark(1, 7, ended=2.0)], 5, "failed", 7, "rank 1"),
        ([mark(0, 143, ended=1.0, signal=15, stopped=True), mark(1, 7, ended=2.0)], 7, "failed", 7, "rank 1"),
        ([mark(0, 137, signal=9), mark(1, 143, signal=15, stopped=True)], 137, "failed", 137, "rank 0 on node1 was ended"),
        ([mark(0, 143, signal=15, stopped=True)], 143, "failed", 143, "SIGTERM, after it was told to stop"),
        ([mark(0), mark(1)], 6, "failed", 6, "every rank ended with 0, but what started them ended with 6"),
        ([mark(0), None], 0, "failed", 1, "rank 1 never started"),
        ([None, None], 213, "failed", 213, "ranks 0, 1 never started; what should start them ended with 213"),
        ([mark(0), mark(1, None)], 137, "failed", 137, "rank 1 left no exit code"),
        ([mark(0, 143, signal=15, stopped=True), mark(1, None)], 137, "failed", 137, "rank 1 left no exit code"),
        ([mark(0, 3), mark(1, None, stopped=True)], 1, "failed", 3, "rank 0"),
        ([mark(0, 250, signal=None), mark(1)], 1, "failed", 250, "exit code 250"),
    ],
)
def test_verdicts(marks: list[RankMark | None], backend: int, state: str, code: int, words: str) -> None:
    outcome = judge(marks, backend, cancelled=False)
    assert (outcome.state, outcome.exit_code) == (state, code)
    assert words in (outcome.reason or "")


def test_an_interrupted_job_is_cancelled_unless_it_was_done() -> None:
    assert judge([mark(0, 143, signal=15, stopped=True)], 130, cancelled=True).exit_code == 130
    assert judge([None], 0, cancelled=True).state == "cancelled"
    assert judge([mark(0)], 0, cancelled=True).state == "succeeded"

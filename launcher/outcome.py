"""How a job ended: one verdict from the ranks' marks and the backend's exit code."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from launcher.process.marks import RankMark


@dataclass(frozen=True)
class Outcome:
    """The end of a job."""

    state: str
    """succeeded, failed or cancelled."""
    exit_code: int
    reason: str | None = None
    first_failing: RankMark | None = None
    """The rank whose end was the cause."""


def judge(marks: Sequence[RankMark | None], backend_code: int, *, cancelled: bool) -> Outcome:
    """The verdict.

    Success needs every rank's own exit mark to be 0 and the backend to agree.  Otherwise the job's exit code is that of the rank
    that failed first, by time.  Ranks that were told to stop before they ended are looked at only where no other failed or was
    lost; the backend's code counts only where no rank's does.

    Args:
        marks: by rank; None where a rank never started.
        backend_code: exit code of mpirun, horovodrun or the local rank's wrapper.
        cancelled: whether the user asked for the end.
    """
    unfinished = [rank for rank, mark in enumerate(marks) if mark is None or mark.exit_code is None]
    failing = first_failing(marks)
    if not unfinished and failing is None and backend_code == 0:
        return Outcome("succeeded", EXIT_OK)
    if cancelled:
        return Outcome("cancelled", EXIT_INTERRUPTED, "interrupted; all ranks were stopped")
    lost = [rank for rank in unfinished if not _stopped(marks[rank])]
    if failing is not None and not (failing.stopped and lost):
        return Outcome("failed", failing.exit_code or EXIT_FAILED, _rank_reason(failing), failing)
    if unfinished:
        return Outcome("failed", backend_code or EXIT_FAILED, _unfinished_reason(marks, lost or unfinished, backend_code))
    return Outcome("failed", backend_code, f"every rank ended with 0, but what started them ended with {backend_code}")


def _stopped(mark: RankMark | None) -> bool:
    return mark is not None and mark.stopped


def first_failing(marks: Sequence[RankMark | None]) -> RankMark | None:
    """The mark of the rank that failed first; of those that were told to stop only where no other failed."""
    failed = [mark for mark in marks if mark is not None and mark.failed]
    return min(failed, key=lambda mark: (mark.stopped, mark.ended or 0.0), default=None)


def _rank_reason(mark: RankMark) -> str:
    if mark.error is not None:
        return f"rank {mark.rank}: the command could not be started: {mark.error}"
    if mark.signal is not None:
        how = "after it was told to stop" if mark.stopped else "which this launcher did not send"
        return f"rank {mark.rank} on {mark.host} was ended by {_signal_name(mark.signal)}, {how}"
    return f"rank {mark.rank} on {mark.host} ended with exit code {mark.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _unfinished_reason(marks: Sequence[RankMark | None], unfinished: Sequence[int], backend_code: int) -> str:
    names = ", ".join(str(rank) for rank in unfinished[:8]) + (" ..." if len(unfinished) > 8 else "")
    never = all(marks[rank] is None for rank in unfinished)
    what = "never started" if never else "left no exit code: something killed them together with their wrappers"
    return f"rank{'s' if len(unfinished) > 1 else ''} {names} {what}; what should start them ended with {backend_code}"

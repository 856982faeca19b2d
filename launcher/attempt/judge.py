"""How an attempt ended: one verdict from the ranks' marks, the backend's exit code and the reason for which it was stopped."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from launcher.jobdir.marks import RankMark
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import (
    CANCELLED,
    FAILED,
    FAILURE,
    FINISHED,
    GENTLE_CAUSES,
    NOT_STARTED,
    PREEMPTION,
    STARTER_GONE,
    SUCCEEDED,
    SUPERVISOR_GONE,
    TIME_LIMIT,
)

EXIT_CODES = {TIME_LIMIT: 124, PREEMPTION: 143}
"""Exit codes of attempts that were ended from outside: as timeout(1) has it, and as a shell has it after TERM; others have 1.
What mpirun says then depends on which of its children was quicker."""

EXIT_KILLED = 137
"""Exit code of ranks that were started and left none: only KILL keeps a wrapper from noting it."""



@dataclass(frozen=True)
class Outcome:
    """The verdict."""

    state: str
    """succeeded, failed or cancelled."""
    exit_code: int
    reason: str | None = None
    first_failing: RankMark | None = None
    """The rank whose end was the cause."""
    cause: str = FAILURE
    """One of `launcher.jobdir.words.END_CAUSES`."""
    bad_hosts: tuple[str, ...] = ()
    """Hosts to blame, as the ranks' marks name them."""


def judge(
    marks: Sequence[RankMark | None],
    backend_code: int,
    *,
    stopped: Stop | None = None,
    finished: bool | None = None,
    refused: str | None = None,
) -> Outcome:
    """The verdict.

    Success needs every rank's own exit mark to be 0, the backend to agree, and the training's own mark where that is asked for;
    then nothing that was requested meanwhile counts.  Otherwise the job's exit code is that of the rank that failed first, by
    time.  Ranks that were told to stop before they ended are looked at only where no other failed or was lost; the backend's code
    counts only where no rank's does.

    Args:
        marks: by rank; None where a rank never started.
        backend_code: exit code of mpirun, horovodrun or the local rank's wrapper.
        stopped: the request by which the attempt was stopped, where there was one.
        finished: whether the training has left its own mark of being done; None where it has not, and need not.
        refused: which path the ranks could not write their marks to, and why, where that is known.
    """
    unfinished = [rank for rank, mark in enumerate(marks) if mark is None or mark.exit_code is None]
    failing = first_failing(marks)
    if stopped is None or stopped.cause == FAILURE:
        stopped = _stopped_by_wrapper(marks)
    if not unfinished and failing is None and backend_code == 0:
        saved = stopped is not None and stopped.cause in GENTLE_CAUSES and any(_stopped(mark) for mark in marks)
        if finished or (finished is None and not saved):
            return Outcome(SUCCEEDED, EXIT_OK, cause=FINISHED)
        if stopped is None:
            return Outcome(FAILED, EXIT_FAILED, "every rank ended with 0, but the training has not noted that it is finished")
    if stopped is not None:
        return _requested(stopped, failing)
    return _failed(marks, failing, unfinished, backend_code, refused)


def _requested(request: Stop, failing: RankMark | None) -> Outcome:
    """The verdict on an attempt that did not end by itself."""
    if request.cause == CANCELLED:
        return Outcome(CANCELLED, EXIT_INTERRUPTED, request.reason or "cancelled; all ranks were stopped", cause=CANCELLED)
    if failing is not None and not failing.stopped and failing.ended is not None and failing.ended < request.time:
        return Outcome(FAILED, failing.exit_code or EXIT_FAILED, _rank_reason(failing), failing)
    reason = request.reason or f"stopped: {request.cause.replace('_', ' ')}"
    code = EXIT_CODES.get(request.cause, EXIT_FAILED)
    return Outcome(FAILED, code, reason, cause=request.cause, bad_hosts=request.bad_hosts)


def _stopped_by_wrapper(marks: Sequence[RankMark | None]) -> Stop | None:
    """What made the wrappers stop their ranks by themselves, where nothing failed before."""
    over = any(mark is not None and mark.stop_cause == TIME_LIMIT for mark in marks)
    if not over or any(mark is not None and mark.failed and not mark.stopped for mark in marks):
        return None
    return Stop(TIME_LIMIT, "the ranks themselves", "the time limit was reached")


def _failed(
    marks: Sequence[RankMark | None],
    failing: RankMark | None,
    unfinished: Sequence[int],
    backend_code: int,
    refused: str | None,
) -> Outcome:
    lost = [rank for rank in unfinished if not _stopped(marks[rank])]
    if failing is not None and not failing.stopped:
        return Outcome(FAILED, failing.exit_code or EXIT_FAILED, _rank_reason(failing), failing)
    if failing is not None and not lost:
        return Outcome(FAILED, _code_of_starter(failing, backend_code), _stopped_reason(failing, backend_code))
    if unfinished:
        never = all(mark is None for mark in marks)
        reason = _unfinished_reason(marks, lost or unfinished, backend_code, refused)
        killed = any(marks[rank] is not None for rank in lost or unfinished)
        code = EXIT_KILLED if killed else backend_code or EXIT_FAILED
        return Outcome(FAILED, code, reason, cause=NOT_STARTED if never else FAILURE)
    return Outcome(FAILED, backend_code, f"every rank ended with 0, but what started them ended with {backend_code}")


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
        memory = ": often for lack of memory, see `dmesg`" if mark.signal == signal.SIGKILL and not mark.stopped else ""
        return f"rank {mark.rank} on {mark.host} was ended by {_signal_name(mark.signal)}, {how}{memory}"
    return f"rank {mark.rank} on {mark.host} ended with exit code {mark.exit_code}"


def _code_of_starter(mark: RankMark, backend_code: int) -> int:
    killed = mark.stop_cause is not None or backend_code == 0
    return EXIT_KILLED if killed else backend_code


def _stopped_reason(mark: RankMark, backend_code: int) -> str:
    """Why ranks were stopped although nobody asked for it: what they belonged to had ended before them."""
    if mark.stop_cause == SUPERVISOR_GONE:
        return "what ran the attempt was killed, and its ranks were stopped"
    if mark.stop_cause == STARTER_GONE:
        return f"what had started rank {mark.rank} on {mark.host} was killed, and its ranks were stopped"
    how = f"by {_signal_name(backend_code - 128)}" if backend_code > 128 else f"with code {backend_code}"
    return f"what had started the ranks ended {how} before them, and they were stopped"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _unfinished_reason(
    marks: Sequence[RankMark | None], unfinished: Sequence[int], backend_code: int, refused: str | None
) -> str:
    names = ", ".join(str(rank) for rank in unfinished[:8]) + (" ..." if len(unfinished) > 8 else "")
    never = all(marks[rank] is None for rank in unfinished)
    if refused is not None:
        return f"rank{'s' if len(unfinished) > 1 else ''} {names} left no word of how they ended: {refused}"
    what = "never started" if never else "left no exit code: something killed them together with their wrappers"
    return f"rank{'s' if len(unfinished) > 1 else ''} {names} {what}; what should start them ended with {backend_code}"

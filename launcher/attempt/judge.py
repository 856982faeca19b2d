"""How an attempt ended: one verdict from the ranks' marks, the starter's exit code and the reason for which it was stopped.

The reason names the exception that ended a rank, from its log, and why ranks have left no marks.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from launcher.host.files import obstacle
from launcher.jobdir import words
from launcher.jobdir.logs import end_of, of_last_attempt
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import CANCELLED, FAILED, FAILURE, SUCCEEDED

EXIT_CODES = {words.TIME_LIMIT: 124, words.PREEMPTION: 143}
"""Exit codes of attempts that were ended from outside: as timeout(1) has it, and as a shell has it after TERM; others have 1.
What mpirun says then depends on which of its children was quicker."""

EXIT_KILLED = 137
"""Exit code of ranks that were started and left none: only KILL keeps a wrapper from noting it."""


@dataclass(frozen=True)
class Outcome:
    """The verdict."""

    state: str
    """One of `launcher.jobdir.words.FINAL`."""
    exit_code: int
    reason: str | None = None
    first_failing: RankMark | None = None
    """The rank whose end was the cause."""
    cause: str = FAILURE
    """One of `launcher.jobdir.words.END_CAUSES`."""
    bad_hosts: tuple[str, ...] = ()
    """Hosts to blame, as the ranks' marks name them."""


@dataclass(frozen=True)
class Evidence:
    """All that an attempt has left."""

    marks: Sequence[RankMark | None]
    """By rank; None if a rank never started."""
    starter_code: int
    """Exit code of mpirun, horovodrun, srun or the local rank's wrapper."""
    stopped: Stop | None = None
    """The request by which the attempt was stopped, if there was one."""
    finished: bool | None = None
    """Whether the training has left its own mark of being done; None if it has not, and need not."""
    unwritten: str | None = None
    """Which path the ranks could not write their marks to, and why, if that is known."""

    @cached_property
    def unfinished(self) -> tuple[int, ...]:
        """Ranks without an exit code."""
        return tuple(rank for rank, mark in enumerate(self.marks) if mark is None or mark.exit_code is None)

    @cached_property
    def lost(self) -> tuple[int, ...]:
        """Ranks without an exit code that were not told to stop."""
        return tuple(rank for rank in self.unfinished if not _stopped(self.marks[rank]))

    @cached_property
    def failing(self) -> RankMark | None:
        """The rank that failed first, by time."""
        return first_failing(self.marks)

    @cached_property
    def all_well(self) -> bool:
        """Whether every rank, and the program that started them, ended with 0."""
        return not self.unfinished and self.failing is None and self.starter_code == 0

    @cached_property
    def request(self) -> Stop | None:
        """What asked for the end: the request, or the time limit, at which the wrappers stop their ranks by themselves.

        A request whose cause is a failure is none: what failed is the cause.
        """
        if self.stopped is not None and self.stopped.cause != FAILURE:
            return self.stopped
        over = any(mark is not None and mark.stop_cause == words.TIME_LIMIT for mark in self.marks)
        if not over or any(mark is not None and mark.failed and not mark.stopped for mark in self.marks):
            return None
        return Stop(words.TIME_LIMIT, "the ranks themselves", "the time limit was reached")


def judge(evidence: Evidence) -> Outcome:
    """The verdict: that of the first of `RULES` that has one.

    Success needs every rank's own exit mark to be 0, the starter to agree, and the training's own mark if that is asked for; then
    nothing that was requested meanwhile counts.  Otherwise the job's exit code is that of the rank that failed first, by time.
    Ranks that were told to stop before they ended count only if no other failed or was lost; the starter's code counts only if no
    rank's does.
    """
    return next(outcome for rule in RULES if (outcome := rule(evidence)) is not None)


def _succeeded(evidence: Evidence) -> Outcome | None:
    if not evidence.all_well or evidence.finished is False:
        return None
    gentle = evidence.request is not None and evidence.request.cause in words.GENTLE_CAUSES
    saved = gentle and any(_stopped(mark) for mark in evidence.marks)
    return None if saved and not evidence.finished else Outcome(SUCCEEDED, EXIT_OK, cause=words.FINISHED)


def _lacks_its_own_mark(evidence: Evidence) -> Outcome | None:
    if not evidence.all_well or evidence.request is not None:
        return None
    return Outcome(FAILED, EXIT_FAILED, "every rank ended with 0, but the training has not noted that it is finished")


def _was_cancelled(evidence: Evidence) -> Outcome | None:
    request = evidence.request
    if request is None or request.cause != CANCELLED:
        return None
    return Outcome(CANCELLED, EXIT_INTERRUPTED, request.reason or "cancelled; all ranks were stopped", cause=CANCELLED)


def _failed_before_the_request(evidence: Evidence) -> Outcome | None:
    request, failing = evidence.request, evidence.failing
    if request is None or failing is None or failing.stopped or failing.ended is None or failing.ended >= request.time:
        return None
    return _by_rank(failing)


def _was_stopped(evidence: Evidence) -> Outcome | None:
    request = evidence.request
    if request is None:
        return None
    reason = request.reason or f"stopped: {request.cause.replace('_', ' ')}"
    code = EXIT_CODES.get(request.cause, EXIT_FAILED)
    return Outcome(FAILED, code, reason, cause=request.cause, bad_hosts=request.bad_hosts)


def _a_rank_failed(evidence: Evidence) -> Outcome | None:
    failing = evidence.failing
    return None if failing is None or failing.stopped else _by_rank(failing)


def _only_stopped_ranks_failed(evidence: Evidence) -> Outcome | None:
    """Judge ranks that were stopped although nobody asked for it: the program that started them ended before them."""
    failing, code = evidence.failing, evidence.starter_code
    if failing is None or evidence.lost:
        return None
    killed = failing.stop_cause is not None or code == 0
    return Outcome(FAILED, EXIT_KILLED if killed else code, _stopped_reason(failing, code))


def _ranks_are_missing(evidence: Evidence) -> Outcome | None:
    missing = evidence.lost or evidence.unfinished
    if not missing:
        return None
    killed = any(evidence.marks[rank] is not None for rank in missing)
    code = EXIT_KILLED if killed else evidence.starter_code or EXIT_FAILED
    cause = FAILURE if any(evidence.marks) else words.NOT_STARTED
    return Outcome(FAILED, code, _missing_reason(evidence, missing), cause=cause)


def _the_starter_failed(evidence: Evidence) -> Outcome | None:
    code = evidence.starter_code
    return Outcome(FAILED, code, f"every rank ended with 0, but the program that started them ended with {code}")


RULES: tuple[Callable[[Evidence], Outcome | None], ...] = (
    _succeeded,
    _lacks_its_own_mark,
    _was_cancelled,
    _failed_before_the_request,
    _was_stopped,
    _a_rank_failed,
    _only_stopped_ranks_failed,
    _ranks_are_missing,
    _the_starter_failed,
)
"""In the order in which they are asked; the last one always has a verdict."""


def first_failing(marks: Sequence[RankMark | None]) -> RankMark | None:
    """The mark of the rank that failed first; one that was told to stop counts only if no other failed."""
    failed = [mark for mark in marks if mark is not None and mark.failed]
    return min(failed, key=lambda mark: (mark.stopped, mark.ended or 0.0), default=None)


def _stopped(mark: RankMark | None) -> bool:
    return mark is not None and mark.stopped


def _by_rank(mark: RankMark) -> Outcome:
    return Outcome(FAILED, mark.exit_code or EXIT_FAILED, _rank_reason(mark), mark)


def _rank_reason(mark: RankMark) -> str:
    if mark.error is not None:
        return f"rank {mark.rank}: the command could not be started: {mark.error}"
    if mark.signal is not None:
        how = "after it was told to stop" if mark.stopped else "which this launcher did not send"
        memory = ": often for lack of memory, see `dmesg`" if mark.signal == signal.SIGKILL and not mark.stopped else ""
        return f"rank {mark.rank} on {mark.host} was ended by {_signal_name(mark.signal)}, {how}{memory}"
    return f"rank {mark.rank} on {mark.host} ended with exit code {mark.exit_code}"


def _stopped_reason(mark: RankMark, code: int) -> str:
    if mark.stop_cause == words.SUPERVISOR_GONE:
        return "the attempt's supervisor was killed, and its ranks were stopped"
    if mark.stop_cause == words.STARTER_GONE:
        return f"the program that started rank {mark.rank} on {mark.host} was killed, and its ranks were stopped"
    how = f"by {_signal_name(code - 128)}" if code > 128 else f"with code {code}"
    return f"the program that started the ranks ended {how} before them, and they were stopped"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _missing_reason(evidence: Evidence, missing: Sequence[int]) -> str:
    names = ", ".join(str(rank) for rank in missing[:8]) + (" ..." if len(missing) > 8 else "")
    ranks = f"rank{'s' if len(missing) > 1 else ''} {names}"
    if evidence.unwritten is not None:
        return f"{ranks} left no word of how they ended: {evidence.unwritten}"
    never = all(evidence.marks[rank] is None for rank in missing)
    what = "never started" if never else "left no exit code: something killed them together with their wrappers"
    return f"{ranks} {what}; the program that should start them ended with {evidence.starter_code}"


LONGEST = 300
"""Characters of the sentence."""
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_COMPLAINT = re.compile(rb"^rank \d+: (?:its mark cannot be written|the job directory .+ cannot be used): .+$", re.MULTILINE)
"""What a rank's wrapper says if it cannot leave its mark; see `launcher.jobdir.marks` and `launcher.attempt.rank.wrapper`."""


def with_exception(outcome: Outcome, job: JobPaths) -> str | None:
    """An outcome's reason, with the exception that ended the rank that failed first."""
    first = outcome.first_failing
    if first is None:
        return outcome.reason
    log = job.rank_log(first.rank)
    if first.lost_output:
        return f"{outcome.reason}; {first.lost_output} bytes of its output could not be written to {log}"
    said = exception_of(log) if first.signal is None and not first.stopped else None
    return outcome.reason if said is None else f"{outcome.reason}: {said}"


def exception_of(log: Path) -> str | None:
    """The exception of a Python program's last traceback, with the first line of what it says; None if there is none.

    Args:
        log: of one rank; only what its last attempt wrote counts.
    """
    own = of_last_attempt(end_of(log)).decode("utf-8", "replace")
    _, found, after = own.rpartition(_TRACEBACK)
    if not found:
        return None
    for line in after.splitlines()[1:]:
        if _EXCEPTION.match(line):
            said = _CONTROL.sub("", line)
            return said if len(said) <= LONGEST else said[: LONGEST - 4] + " ..."
    return None


def why_marks_are_missing(attempt: AttemptPaths, said: bytes = b"") -> str | None:
    """The path that could not be written, and why; None if nothing is known to have been refused.

    This tells a full disk or a read-only directory from ranks that never started.

    Args:
        attempt: whose marks are missing.
        said: the last output of the program that started the ranks: it reaches this process even if no log can take it.
    """
    complaint = _COMPLAINT.search(said)
    if complaint is not None:
        return complaint.group().decode("utf-8", "replace").strip()
    return obstacle(attempt.ranks)

"""Reasons in one sentence: the exception that ended a rank, from its log, and why ranks have left no marks."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.attempt.judge import Outcome
from launcher.host.files import obstacle
from launcher.jobdir.logs import end_of, of_last_attempt
from launcher.jobdir.paths import AttemptPaths, JobPaths

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

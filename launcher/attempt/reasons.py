"""The one sentence of a failed rank: what the exception that ended it says, from the end of the rank's log."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.attempt.judge import Outcome
from launcher.jobdir.logs import end_of, of_last_attempt
from launcher.jobdir.paths import JobPaths

LONGEST = 300
"""Characters of the sentence."""
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
    """The exception of a Python program's last traceback, with the first line of what it says; None where there is none.

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

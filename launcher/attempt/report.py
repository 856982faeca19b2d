"""The report of jobs that have measured something; a job's own is made when it has ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.attempt.policy import final
from launcher.attempt.program import starting_environment
from launcher.errors import LauncherError
from launcher.host.program import run
from launcher.host.signals import SignalBox
from launcher.jobdir.end import read_ends
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan

REPORT_SECONDS = 120.0
"""While a person waits for it."""
UNSEEN_SECONDS = 60.0
"""While nobody does: the job's slots are taken meanwhile."""


class ReportError(LauncherError):
    """A report could not be made."""


class ReportInterruptedError(ReportError):
    """A signal ended the making of a report."""


class _Signalled:
    """A `launcher.host.program.Flag` that a signal sets."""

    def __init__(self, signals: SignalBox) -> None:
        self._signals = signals
        self.seen = False
        """Whether one has arrived."""

    def is_set(self) -> bool:
        """Whether one has arrived by now."""
        self.seen = self.seen or bool(self._signals.take())
        return self.seen


def is_over(plan: Plan, job: JobPaths) -> bool:
    """Whether no other attempt is due, by the ends that lie in the job directory."""
    ends = read_ends(job)
    return bool(ends) and final(plan.restart, ends) is not None


def report_unseen(plan: Plan, job: JobPaths) -> None:
    """Make the report of a job that is over and that nobody follows; what goes wrong is noted as a warning."""
    problem = make_report(plan, job, UNSEEN_SECONDS)
    if problem is not None:
        EventLog(job).add("warning", attempt=plan.job.attempt, message=problem)


def make_report(plan: Plan, job: JobPaths, seconds: float = REPORT_SECONDS) -> str | None:
    """Make ``report.html`` of a job whose training measured something; returns what went wrong, or None."""
    if not job.metrics.exists():
        return None
    environment = starting_environment(plan, job.attempt(plan.job.attempt))
    try:
        make([job.root], python=plan.launch.python, environment=environment, seconds=seconds)
    except ReportError as error:
        return str(error)
    return None


def make(directories: Sequence[Path], *, python: str, environment: Mapping[str, str], seconds: float = math.inf) -> Path:
    """Run ``python -m hvdgrab.report`` over job directories; returns the file that it wrote into the first of them.

    A signal ends the making of the report and nothing else: what is known of the jobs is still to be said.

    Args:
        directories: absolute.
        python: the interpreter.
        environment: its variables.
        seconds: time for it.

    Raises:
        ReportInterruptedError: a signal came.
        ReportError: it could not be made; the text says why.
    """
    argv = [python, "-m", "hvdgrab.report", *map(str, directories)]
    with SignalBox() as signals:
        signalled = _Signalled(signals)
        answer = run(
            argv, environment={**environment, "MPLBACKEND": "Agg"}, cwd=directories[0], seconds=seconds, interrupted=signalled
        )
    if answer.code is None and signalled.seen:
        raise ReportInterruptedError("the report was interrupted")
    if not answer.ok:
        raise ReportError(f"the report could not be made: {answer.complaint}")
    return Path(answer.stdout.strip().splitlines()[-1])

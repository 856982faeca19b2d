"""The report of jobs that have measured something; a job's own is made when it has ended."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from launcher.attempt.policy import Final, decide
from launcher.attempt.program import starting_environment
from launcher.errors import LauncherError
from launcher.host.signals import SignalBox
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan

REPORT_SECONDS = 120.0
"""While a person waits for it."""
UNSEEN_SECONDS = 60.0
"""While nobody does: the job's slots are taken meanwhile."""
TICK = 0.1


class ReportError(LauncherError):
    """A report could not be made."""


class ReportInterruptedError(ReportError):
    """A signal ended the making of a report."""


def is_over(plan: Plan, job: JobPaths) -> bool:
    """Whether no other attempt is due, by the ends that lie in the job directory."""
    ends = [end for number in job.attempt_numbers() if (end := AttemptEnd.read(job.attempt(number))) is not None]
    return bool(ends) and isinstance(decide(plan.restart, ends, time.time(), random.Random(0)), Final)


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


def make(directories: Sequence[Path], *, python: str, environment: Mapping[str, str], seconds: float | None = None) -> Path:
    """Run ``python -m hvdgrab.report`` over job directories; returns the file that it wrote into the first of them.

    A signal ends the making of the report and nothing else: what is known of the jobs is still to be said.

    Args:
        directories: absolute.
        python: the interpreter.
        environment: its variables.
        seconds: time for it; None for any.

    Raises:
        ReportInterruptedError: a signal came.
        ReportError: it could not be made; the text says why.
    """
    argv = [python, "-m", "hvdgrab.report", *map(str, directories)]
    with SignalBox() as signals, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                argv, cwd=directories[0], env={**environment, "MPLBACKEND": "Agg"}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ReportError(f"the report could not be made: {error.strerror}") from error
        _wait(process, signals, seconds)
        if process.returncode != 0:
            raise ReportError(f"the report could not be made: {_last_line(err) or f'exit code {process.returncode}, no message'}")
        return Path(_last_line(out))


def _wait(process: subprocess.Popen[bytes], signals: SignalBox, seconds: float | None) -> None:
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    try:
        while process.poll() is None:
            select.select([signals], [], [], TICK)
            if signals.take():
                raise ReportInterruptedError("the report was interrupted")
            if time.monotonic() > deadline:
                raise ReportError(f"the report was not ready within {seconds:.0f} s")
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(file: IO[bytes]) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 16)))
    return (file.read().decode("utf-8", "replace").strip().splitlines() or [""])[-1]

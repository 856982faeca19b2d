"""The report of a job that has measured something, made when it has ended."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import time
from typing import IO

from launcher.attempt.policy import Final, decide
from launcher.attempt.program import starting_environment
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
    """Make ``report.html`` where the training measured something; returns what went wrong, or None.

    A signal ends the making of the report, and nothing else: what is known of the job is still to be said.
    """
    if not job.metrics.exists():
        return None
    argv = [plan.launch.python, "-m", "hvdgrab.report", str(job.root)]
    environment = starting_environment(plan, job.attempt(plan.job.attempt)) | {"MPLBACKEND": "Agg"}
    with SignalBox() as signals:
        try:
            process = subprocess.Popen(
                argv, cwd=job.root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return f"the report could not be made: {error.strerror}"
        assert process.stdout is not None
        with process.stdout as output:
            trouble, said = _watch(process, output, signals, seconds)
    if trouble is not None:
        return trouble
    lines = said.decode("utf-8", "replace").strip().splitlines() or ["no message"]
    return None if process.returncode == 0 else f"the report could not be made: {lines[-1]}"


def _watch(process: subprocess.Popen[bytes], output: IO[bytes], signals: SignalBox, seconds: float) -> tuple[str | None, bytes]:
    """Wait for the end; returns why it was not waited for, and what the program said."""
    os.set_blocking(output.fileno(), False)
    deadline = time.monotonic() + seconds
    said, trouble = b"", None
    while process.poll() is None and trouble is None:
        select.select([signals.fileno(), output.fileno()], [], [], TICK)
        said = (said + (output.read() or b""))[-(1 << 16) :]
        if signals.take():
            trouble = "the report was interrupted"
        elif time.monotonic() > deadline:
            trouble = f"the report was not ready within {seconds:.0f} s"
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return trouble, said + (output.read() or b"")

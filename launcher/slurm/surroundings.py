"""Attempts that run on nodes of SLURM: in a batch job of the launcher's own, or in an allocation that a person holds.

The supervisor of an attempt in somebody's allocation need not stand on the allocation's nodes and outlives it: it tells that the
allocation has ended, and why.  Jobs of one allocation run one after the other, as SLURM gives a step all that its nodes have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from launcher.attempt.judge import Outcome
from launcher.attempt.program import Program
from launcher.attempt.supervisor import AttemptRun, View
from launcher.errors import LauncherError
from launcher.host.program import Answer
from launcher.host.signals import SignalBox
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths, make_private, runtime_directory
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop
from launcher.plan.facts import Allocation
from launcher.slurm import causes
from launcher.slurm.start_method import asker, start

PAUSE = 0.2
"""Seconds between two looks whether an allocation is free."""


class NamingLog(EventLog):
    """Events of an attempt inside SLURM: that of its start names the job of SLURM."""

    def __init__(self, job: JobPaths, slurm_job_id: str) -> None:
        super().__init__(job)
        self._slurm_job_id = slurm_job_id

    def add(self, event: str, **details: Any) -> None:
        """Append one event."""
        super().add(event, **details, **({"slurm_job_id": self._slurm_job_id} if event == "started" else {}))


class StepRun(AttemptRun):
    """An attempt that starts its ranks in the allocation at hand; without one, the start fails with a reason."""

    def _start(self) -> Program:
        return start(self._plan, self._paths)


class SlurmRun(StepRun):
    """An attempt whose start names the job of SLURM, and whose end that job's nodes."""

    allocation: Allocation

    def _start_and_wait(self) -> Outcome:
        self._events = NamingLog(self._job, self.allocation.job_id)
        return super()._start_and_wait()

    def _end(self, outcome: Outcome) -> AttemptEnd:
        return replace(super()._end(outcome), hosts=self.allocation.nodes)


class AllocationRun(SlurmRun):
    """An attempt whose ranks run as a step of an allocation that a person holds."""

    ask: Callable[[], Answer]
    """Asks SLURM about the allocation."""

    def _start_and_wait(self) -> Outcome:
        with self._turn():
            return super()._start_and_wait()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the allocation; the system releases it however this process ends.  Whoever is told to stop waits no longer."""
        try:
            directory = runtime_directory()
            make_private(directory)
            lock = directory / f"allocation-{self.allocation.job_id}.lock"
            number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, LauncherError):
            yield
            return
        try:
            said = False
            while not _locked(number) and not self._pending():
                if not said:
                    self._warn(f"another job runs in SLURM's allocation {self.allocation.job_id}; this one waits for its end")
                said = True
                self._stopper.poll_requests()
                self._touch(time.monotonic())
                time.sleep(PAUSE)
            yield
        finally:
            os.close(number)

    def _from_outside(self, marks: list[RankMark | None], unknown: list[str]) -> Stop | None:
        """The allocation may have ended under the ranks."""
        if any(mark is None or mark.stopped or mark.exit_code is None or mark.signal is not None for mark in marks):
            number = self.allocation.job_id
            over = causes.why_over(number, causes.read_log(self._job.backend_log), self.ask)
            if over is not None:
                reason = f"SLURM's allocation {number}, in which the job runs, {over.of_allocation}"
                return Stop(over.cause, causes.BY, reason, time=0.0)
        return super()._from_outside(marks, unknown)


def _locked(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def build_run(job: JobPaths, plan: Plan, view: View, signals: SignalBox, *, interactive: bool = False) -> AttemptRun:
    """The run of an attempt, inside an allocation if the plan says so; arguments as those of `AttemptRun`."""
    if plan.launch.backend not in ("srun", "slurm"):
        return AttemptRun(job, plan, view, signals, interactive=interactive)
    allocation = Allocation.from_environment(os.environ) if plan.launch.backend == "srun" else None
    if allocation is None:
        return StepRun(job, plan, view, signals, interactive=interactive)
    run = AllocationRun(job, plan, view, signals, interactive=interactive)
    run.allocation, run.ask = allocation, asker(allocation.job_id, os.environ)
    return run

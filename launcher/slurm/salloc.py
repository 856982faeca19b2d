"""Attempts inside an allocation that a person holds, such as that of ``salloc``.

The supervisor need not stand on the allocation's nodes, and outlives it: it says that the allocation has ended, and why.  Jobs of
one allocation run one after the other, as SLURM gives a step all that its nodes have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import replace

from launcher.attempt.judge import Outcome
from launcher.attempt.supervisor import AttemptRun, View
from launcher.daemon.dirs import Dirs, make_private
from launcher.errors import LauncherError
from launcher.host.signals import SignalBox
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop
from launcher.plan.facts import Allocation
from launcher.slurm.held import Ask, asker, said_of_step, why_over
from launcher.slurm.run import SlurmRun, StepRun

PAUSE = 0.2
"""Seconds between two looks whether an allocation is free."""


def build_run(
    job: JobPaths, attempt: int, plan: Plan, view: View, signals: SignalBox | None = None, *, interactive: bool = False
) -> AttemptRun:
    """The run of an attempt, inside an allocation if the plan says so; arguments as those of `AttemptRun`."""
    if plan.launch.backend not in ("srun", "slurm"):
        return AttemptRun(job, attempt, plan, view, signals, interactive=interactive)
    allocation = Allocation.from_environment(os.environ) if plan.launch.backend == "srun" else None
    if allocation is None:
        return StepRun(job, attempt, plan, view, signals, interactive=interactive)
    run = AllocationRun(job, attempt, plan, view, signals, interactive=interactive)
    run.allocation, run.ask = allocation, asker(os.environ)
    return run


class AllocationRun(SlurmRun):
    """An attempt whose ranks run as a step of an allocation."""

    ask: Ask

    def _start_and_wait(self, signals: SignalBox) -> Outcome:
        with self._turn(signals):
            return super()._start_and_wait(signals)

    @contextlib.contextmanager
    def _turn(self, signals: SignalBox) -> Iterator[None]:
        """Hold the allocation; the system gives it back however this process ends.  Whoever is told to stop waits no longer."""
        try:
            directory = Dirs.of_user().runtime
            make_private(directory)
            lock = directory / f"allocation-{self.allocation.job_id}.lock"
            number = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, LauncherError):
            yield
            return
        try:
            said = False
            while not _locked(number) and not self._pending(signals):
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
        told = any(mark is None or mark.stopped or mark.exit_code is None or mark.signal is not None for mark in marks)
        if told:
            number = self.allocation.job_id
            request = why_over(number, self.ask) or said_of_step(self._job.backend_log, number)
            if request is not None:
                return replace(request, time=0.0)
        return super()._from_outside(marks, unknown)


def _locked(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

"""What all attempts have in common that run on nodes of SLURM, whoever has got them."""

from __future__ import annotations

from dataclasses import replace

from launcher.attempt.judge import Outcome
from launcher.attempt.program import Program
from launcher.attempt.supervisor import AttemptRun
from launcher.host.signals import SignalBox
from launcher.jobdir.end import AttemptEnd
from launcher.plan.facts import Allocation
from launcher.slurm.naming import NamingLog
from launcher.slurm.start import start


class StepRun(AttemptRun):
    """An attempt that starts its ranks in the allocation at hand; without one, the start fails with a reason."""

    def _start(self) -> Program:
        return start(self._plan, self._paths)


class SlurmRun(StepRun):
    """An attempt whose start names the job of SLURM, and whose end that job's nodes."""

    allocation: Allocation

    def _start_and_wait(self, signals: SignalBox) -> Outcome:
        self._events = NamingLog(self._job, self.allocation.job_id)
        return super()._start_and_wait(signals)

    def _end(self, outcome: Outcome) -> AttemptEnd:
        return replace(super()._end(outcome), hosts=self.allocation.nodes)

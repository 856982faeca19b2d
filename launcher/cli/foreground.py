"""A job run in the foreground, without a daemon: attempts one after the other, as its restart settings say.

The first Ctrl-C (or TERM, or HUP) stops the job, a second one stops waiting for it.
"""

from __future__ import annotations

import random
import select
import time
from dataclasses import dataclass

from launcher.attempt import policy
from launcher.attempt.judge import Outcome
from launcher.attempt.supervisor import View
from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, PlanError
from launcher.host.signals import SignalBox
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import read_mark
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import CANCELLED, FAILED, NOT_STARTED
from launcher.plan.planning import next_attempt
from launcher.plan.prepare import Prepared, write
from launcher.slurm.salloc import build_run

__all__ = ["Finished", "ForegroundRun", "View"]


@dataclass(frozen=True)
class Finished:
    """A job that has ended, and what is known of it."""

    plan: Plan
    """Of its last attempt."""
    job: JobPaths
    outcome: Outcome
    seconds: float
    """Wall clock from submission to the end of the last process."""
    ends: tuple[AttemptEnd, ...] = ()
    """How its attempts ended."""


class ForegroundRun:
    """One job; `run` is called once."""

    def __init__(self, prepared: Prepared, view: View) -> None:
        self._prepared = prepared
        self._job = prepared.job
        self._plan = prepared.plan
        self._view = view
        self._ends: list[AttemptEnd] = []

    def run(self) -> Finished:
        """Write the job directory, and run attempts until the job has ended.

        Raises:
            UsageError: where the job directory cannot be made.
        """
        begun = time.monotonic()
        with SignalBox() as signals:
            events = write(self._prepared)
            final = self._attempts(signals, events)
            seconds = time.monotonic() - begun
            events.add(
                "finished",
                state=final.state,
                exit_code=final.exit_code,
                reason=final.reason,
                seconds=round(seconds, 3),
                remaining=list(self._ends[-1].remaining) if self._ends else [],
            )
        self._view.closed()
        return Finished(self._plan, self._job, self._outcome(final), seconds, tuple(self._ends))

    def _attempts(self, signals: SignalBox, events: EventLog) -> policy.Final:
        while True:
            try:
                self._plan.place(self._job)
                end = build_run(self._job, self._plan.job.attempt, self._plan, self._view, signals, interactive=True).run()
            except OSError as error:
                reason = f"the job directory {self._job.root} cannot be used: {error.strerror}"
                return policy.Final(FAILED, EXIT_FAILED, reason)
            self._ends.append(end)
            verdict = policy.decide(self._plan.restart, self._ends, time.time(), random.Random())
            if isinstance(verdict, policy.Final):
                return verdict
            events.add("restarting", reason=verdict.reason, at=round(verdict.at, 3), excluded=list(verdict.excluded_hosts))
            pause = max(0.0, verdict.at - time.time())
            self._view.warn(f"{verdict.reason} in {pause:.0f} s")
            if interrupted_within(pause, signals):
                return policy.Final(CANCELLED, EXIT_INTERRUPTED, "interrupted between two attempts")
            refused = self._plan_next(verdict.excluded_hosts)
            if refused is not None:
                return policy.Final(FAILED, end.exit_code, f"{end.reason}; no other attempt can be planned: {refused}")

    def _plan_next(self, excluded: tuple[str, ...]) -> PlanError | None:
        try:
            self._plan = next_attempt(self._plan, self._plan.job.attempt + 1, excluded)
        except PlanError as error:
            return error
        return None

    def _outcome(self, final: policy.Final) -> Outcome:
        last = self._ends[-1] if self._ends else None
        if last is None:
            return Outcome(final.state, final.exit_code, final.reason, cause=NOT_STARTED)
        first = None
        if last.first_failing_rank is not None:
            first = read_mark(self._job.attempt(last.attempt).rank_mark(last.first_failing_rank))
        return Outcome(final.state, final.exit_code, final.reason, first, last.cause, last.bad_hosts)


def interrupted_within(seconds: float, signals: SignalBox) -> bool:
    """Wait for some seconds, whatever is done to the clock meanwhile; True at once where a signal arrives."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        select.select([signals], [], [], min(left, 60.0))
        if signals.take():
            return True
    return False

"""When and how a running attempt is ended: requests, signals, and the times at which patience is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from launcher.attempt.program import Program
from launcher.attempt.rank.keeper import GRACE
from launcher.attempt.view import View
from launcher.jobdir import variables, words
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop

STOP_MARGIN = 3.0
"""Seconds that the backend has more than the wrappers, between being asked to stop and KILL."""
FAILURE_GRACE = 10.0
"""Seconds that a backend has to end by itself after one of its ranks has failed."""
ENDED_GRACE = 30.0
"""Seconds that a backend has to end by itself after all of its ranks have ended well."""


class Stopper:
    """Ends one attempt; its supervisor's loop calls `obey`, `look` and `enforce` again and again."""

    def __init__(self, attempt: AttemptPaths, plan: Plan, view: View, events: EventLog, *, interactive: bool) -> None:
        """As for `launcher.attempt.supervisor.AttemptRun`."""
        self._attempt = attempt
        self._plan = plan
        self._view = view
        self._events = events
        self._interactive = interactive
        self._failed_at: float | None = None
        self._ended_at: float | None = None
        self._terminate_at: float | None = None
        self._kill_at: float | None = None
        self.grace = variables.seconds_in(variables.GRACE_SECONDS, GRACE)
        """Seconds between TERM and KILL for the ranks."""
        self.request: Stop | None = None
        """Why the attempt is being ended; None while it is not."""
        self.backend_hung = False
        """Whether the backend had to be ended although all ranks had ended well."""

    def obey(self, numbers: Sequence[int]) -> None:
        """Do what signals ask for."""
        for number in numbers:
            self._events.add("signal", attempt=self._attempt.number, signal=signal.Signals(number).name)
            if self.request is None:
                self.ask(self._cause_of_signal(number))
            elif self._interactive:
                self._kill_at = time.monotonic()
            elif self._attempt.job.cancel.exists():
                self._terminate_at = min(self._terminate_at or 0.0, time.monotonic())

    def _cause_of_signal(self, number: int) -> Stop:
        written = Stop.read(self._attempt)
        if written is not None:
            return written
        name = signal.Signals(number).name
        if self._interactive:
            return Stop(words.CANCELLED, name, "interrupted; all ranks were stopped")
        if self._attempt.job.cancel.exists():
            return Stop(words.CANCELLED, name)
        return Stop(words.PREEMPTION, name, f"{name} ended the attempt from outside")

    def look(self) -> None:
        """Look for requests in the job directory."""
        if self.request is None and self._attempt.job.cancel.exists():
            self.ask(Stop(words.CANCELLED, "the request in the job directory"))
        elif self.request is None and (written := Stop.read(self._attempt)) is not None:
            self.ask(written)

    def ask(self, wanted: Stop) -> None:
        """Stop the attempt: ranks that can save their state get the time for it, where the cause leaves any."""
        self.request = wanted.write(self._attempt)
        now = time.monotonic()
        gentle = self.request.cause == words.PREEMPTION and self._plan.limits.checkpoint_signal is not None
        self._terminate_at = now + self._plan.limits.before_limit if gentle else now
        once_more = "; once more to stop waiting for them" if self._interactive else ""
        self._view.stopping(f"{self.request.reason or self.request.cause.replace('_', ' ')}: stopping all ranks{once_more}")
        self._events.add("stopping", attempt=self._attempt.number, cause=self.request.cause, by=self.request.by)

    def note_ends(self, marks: Sequence[RankMark | None], now: float) -> None:
        """Take notice of ranks that have ended: what had started them has only so long to end as well."""
        if self._failed_at is None and any(mark is not None and mark.failed for mark in marks):
            self._failed_at = now
        if self._ended_at is None and all(mark is not None and mark.exit_code == 0 for mark in marks):
            self._ended_at = now

    def enforce(self, now: float, program: Program, warn: Callable[[str], None]) -> None:
        """End the program if its time is over; ``now`` is `time.monotonic`."""
        if self._kill_at is not None:
            if now >= self._kill_at:
                program.kill()
        elif self._terminate_at is not None:
            if now >= self._terminate_at:
                program.terminate()
                self._kill_at = now + self.grace + STOP_MARGIN
        elif self._failed_at is not None and now >= self._failed_at + FAILURE_GRACE:
            self.ask(Stop(words.FAILURE, "the supervisor", "a rank has failed and the others wait for it"))
        elif self._ended_at is not None and now >= self._ended_at + ENDED_GRACE:
            self.backend_hung = True
            warn("all ranks have ended well, but what had started them does not end: it is being ended")
            self._terminate_at = now

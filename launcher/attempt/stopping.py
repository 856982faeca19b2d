"""When and how a running attempt is ended: requests, signals, and the times at which patience is over."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from launcher.attempt.program import Program
from launcher.attempt.rank.keeper import GRACE, Phase, Running, Saving, Stopping, is_gentle
from launcher.jobdir import variables, words
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop

STOP_MARGIN = 3.0
"""Seconds that the program has more than the wrappers, between being asked to stop and KILL."""
FAILURE_GRACE = 10.0
"""Seconds that the program has to end by itself after one of its ranks has failed."""
ENDED_GRACE = 30.0
"""Seconds that the program has to end by itself after all of its ranks have ended well."""


class Stopper:
    """Ends one attempt; its supervisor calls `handle_signals`, `poll_requests` and `enforce` again and again.

    In the phase `Saving` the ranks may save their state, and the program is told to end when that time is over; it is 0 for most
    causes.  In the phase `Stopping` the program was told to end.
    """

    def __init__(
        self, attempt: AttemptPaths, plan: Plan, events: EventLog, say: Callable[[str], None], *, interactive: bool
    ) -> None:
        """As for `launcher.attempt.supervisor.AttemptRun`; ``say`` shows people why the ranks are stopped."""
        self._attempt = attempt
        self._limits = plan.limits
        self._events = events
        self._say = say
        self._interactive = interactive
        self._phase: Phase = Running()
        self._failed_at: float | None = None
        """When a rank was first seen to have failed; like all times here, seconds of the monotonic clock."""
        self._ended_at: float | None = None
        """When all ranks were first seen to have ended well."""
        self.grace = variables.seconds_in(variables.GRACE_SECONDS, GRACE)
        """Seconds between TERM and KILL for the ranks."""
        self.request: Stop | None = None
        """Why the attempt is being ended; None while it is not."""
        self.program_hung = False
        """Whether the program had to be ended although all ranks had ended well."""

    def handle_signals(self, numbers: Sequence[int]) -> None:
        """Do what signals ask for."""
        for number in numbers:
            self._events.add("signal", attempt=self._attempt.number, signal=signal.Signals(number).name)
            now = time.monotonic()
            if self.request is None:
                self.request_stop(self._asked_by_signal(number))
            elif self._interactive:
                self._phase = Stopping(now)
            elif isinstance(self._phase, Saving) and self._attempt.job.cancel.exists():
                self._phase = Saving(min(self._phase.until, now))

    def _asked_by_signal(self, number: int) -> Stop:
        written = Stop.read(self._attempt)
        if written is not None:
            return written
        name = signal.Signals(number).name
        if self._interactive:
            return Stop(words.CANCELLED, name, "interrupted; all ranks were stopped")
        if self._attempt.job.cancel.exists():
            return Stop(words.CANCELLED, name)
        return Stop(words.PREEMPTION, name, f"{name} ended the attempt from outside", unexplained=True)

    def poll_requests(self) -> None:
        """Look for requests in the job directory."""
        if self.request is not None:
            return
        if self._attempt.job.cancel.exists():
            self.request_stop(Stop(words.CANCELLED, "the request in the job directory"))
        elif (written := Stop.read(self._attempt)) is not None:
            self.request_stop(written)

    def request_stop(self, wanted: Stop) -> None:
        """Stop the attempt; if the cause leaves time for it, ranks that can save their state get that time."""
        self.request = wanted.write(self._attempt)
        gentle = is_gentle(self.request.cause, self._limits.checkpoint_signal)
        if not isinstance(self._phase, Stopping):
            self._phase = Saving(time.monotonic() + (self._limits.before_limit if gentle else 0.0), self.request.cause)
        once_more = "; once more to stop waiting for them" if self._interactive else ""
        self._say(f"{self.request.reason or self.request.cause.replace('_', ' ')}: stopping all ranks{once_more}")
        self._events.add("stopping", attempt=self._attempt.number, cause=self.request.cause, by=self.request.by)

    def note_ends(self, marks: Sequence[RankMark | None], now: float) -> None:
        """Note when ranks have ended: from then on, the program that started them has only so long to end as well."""
        if self._failed_at is None and any(mark is not None and mark.failed for mark in marks):
            self._failed_at = now
        if self._ended_at is None and all(mark is not None and mark.exit_code == 0 for mark in marks):
            self._ended_at = now

    def enforce(self, now: float, program: Program, warn: Callable[[str], None]) -> None:
        """End the program if its time is over; ``now`` is `time.monotonic`."""
        match self._phase:
            case Stopping(kill_at) if now >= kill_at:
                program.kill()
            case Saving(until) if now >= until:
                program.terminate()
                self._phase = Stopping(now + self.grace + STOP_MARGIN)
            case Running() if self._failed_at is not None and now >= self._failed_at + FAILURE_GRACE:
                self.request_stop(Stop(words.FAILURE, "the supervisor", "a rank has failed and the others wait for it"))
            case Running() if self._ended_at is not None and now >= self._ended_at + ENDED_GRACE:
                self.program_hung = True
                warn("all ranks have ended well, but the program that started them does not end: it is being ended")
                self._phase = Saving(now)

"""A job run in the foreground: start, watch, judge, clean up.

One loop waits for signals, for what mpirun says, and for time.  It ends when the backend has ended; the first Ctrl-C (or TERM, or
HUP) asks the backend to stop, a second one stops waiting for it.  When `run` returns, no process of the job is left on this host.
"""

from __future__ import annotations

import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Protocol

from launcher.backends import build_backend
from launcher.backends.process import starting_environment
from launcher.errors import EXIT_INTERRUPTED, BackendError
from launcher.outcome import Outcome, judge
from launcher.paths import JobPaths
from launcher.plan import Plan
from launcher.process.marks import read_marks
from launcher.process.signals import SignalBox
from launcher.progress import Epoch, MetricsFollower
from launcher.record import EventLog
from launcher.submit import Prepared, write

TICK = 0.25
"""Seconds between looks at metrics and marks."""
STOP_GRACE = 8.0
"""Seconds between asking the backend to stop and KILL."""
SWEEP_GRACE = 5.0
"""Seconds between TERM and KILL for processes that outlive the backend."""
FAILURE_GRACE = 10.0
"""Seconds that a backend has to end by itself after one of its ranks has failed."""
REPORT_SECONDS = 120.0


class View(Protocol):
    """What a person sees of a run."""

    def started(self, plan: Plan) -> None:
        """The ranks are being started."""
        ...

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Called every `TICK` with the epochs that were finished since."""
        ...

    def stopping(self, reason: str) -> None:
        """The ranks are being stopped."""
        ...

    def warn(self, message: str) -> None:
        """Something that does not change the job's result."""
        ...

    def closed(self) -> None:
        """No further progress follows."""
        ...


@dataclass(frozen=True)
class Finished:
    """A job that has ended, and what is known of it."""

    plan: Plan
    job: JobPaths
    outcome: Outcome
    seconds: float
    """Wall clock from submission to the end of the last process."""


class ForegroundRun:
    """One run; `run` is called once."""

    def __init__(self, prepared: Prepared, view: View) -> None:
        self._prepared = prepared
        self._plan = prepared.plan
        self._job = prepared.job
        self._view = view
        self._backend = build_backend(prepared.plan)
        self._metrics = MetricsFollower(prepared.job.metrics)
        self._reported: set[int] = set()
        self._cancelled = False
        self._stop_at: float | None = None
        self._kill_at: float | None = None

    def run(self) -> Finished:
        """Write the job directory, start, and wait for the end.

        Raises:
            UsageError: where the job directory cannot be made.
            BackendError: where the backend cannot be started; the job is then recorded as failed.
        """
        begun = time.monotonic()
        with SignalBox() as signals:
            events = write(self._prepared)
            self._view.started(self._plan)
            code = self._start_and_wait(events, signals)
            remaining = self._backend.stop(SWEEP_GRACE)
            self._view.tick(self._metrics.poll(), self._metrics)
            outcome = judge(read_marks(self._job, self._plan.ranks), code, cancelled=self._cancelled)
            seconds = time.monotonic() - begun
            self._note_end(events, outcome, seconds, remaining)
        self._view.closed()
        return Finished(self._plan, self._job, outcome, seconds)

    def _start_and_wait(self, events: EventLog, signals: SignalBox) -> int:
        if signals.take():
            self._cancelled = True
            return EXIT_INTERRUPTED
        try:
            pid = self._backend.start(self._plan)
        except BackendError as error:
            events.add("finished", state="failed", exit_code=error.exit_code, reason=str(error), seconds=0.0)
            raise
        events.add("started", pid=pid, argv=list(self._plan.argv))
        while (code := self._backend.poll()) is None:
            self._wait(signals)
            self._obey(signals, events)
            self._look(events)
            self._enforce()
        self._look(events)
        return code

    def _wait(self, signals: SignalBox) -> None:
        output = self._backend.output
        sources: list[SignalBox | int] = [signals]
        if output is not None and output.open:
            sources.append(output.fileno())
        ready, _, _ = select.select(sources, [], [], TICK)
        if output is not None and output.open and output.fileno() in ready:
            output.read_some()

    def _obey(self, signals: SignalBox, events: EventLog) -> None:
        for number in signals.take():
            events.add("signal", signal=signal.Signals(number).name)
            if self._cancelled:
                self._kill_at = time.monotonic()
            else:
                self._cancelled = True
                self._ask_to_stop("stopping all ranks; once more to stop waiting for them")

    def _ask_to_stop(self, reason: str) -> None:
        self._view.stopping(reason)
        self._backend.terminate()
        self._stop_at = None
        self._kill_at = time.monotonic() + STOP_GRACE

    def _look(self, events: EventLog) -> None:
        self._view.tick(self._metrics.poll(), self._metrics)
        for mark in read_marks(self._job, self._plan.ranks):
            if mark is None or mark.exit_code is None or mark.rank in self._reported:
                continue
            self._reported.add(mark.rank)
            events.add("rank-exit", rank=mark.rank, exit_code=mark.exit_code, signal=mark.signal, stopped=mark.stopped)
            if mark.lost_output:
                self._view.warn(f"{mark.lost_output} bytes of output of rank {mark.rank} could not be written to its log")
            if mark.failed and self._stop_at is None:
                self._stop_at = time.monotonic() + FAILURE_GRACE

    def _enforce(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None:
            if now >= self._kill_at:
                self._backend.kill()
        elif self._stop_at is not None and now >= self._stop_at:
            self._ask_to_stop("a rank has failed and the others wait for it: stopping them")

    def _note_end(self, events: EventLog, outcome: Outcome, seconds: float, remaining: list[int]) -> None:
        if self._backend.left_behind and outcome.state != "cancelled":
            self._view.warn(f"{self._backend.left_behind} processes that the job left behind were ended")
        if remaining:
            self._view.warn(f"processes that could not be ended: {', '.join(str(pid) for pid in remaining)}")
        events.add(
            "finished",
            state=outcome.state,
            exit_code=outcome.exit_code,
            reason=outcome.reason,
            seconds=round(seconds, 3),
            remaining=remaining,
        )
        if events.error is not None:
            self._view.warn(f"the job's record is incomplete: {self._job.events}: {events.error.strerror}")


def make_report(plan: Plan, job: JobPaths) -> str | None:
    """Make ``report.html`` where the training measured something; returns what went wrong, or None."""
    if not job.metrics.exists():
        return None
    argv = [plan.python, "-m", "hvdgrab.report", str(job.root)]
    environment = starting_environment(plan) | {"MPLBACKEND": "Agg"}
    try:
        done = subprocess.run(
            argv, cwd=job.root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=REPORT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the report was not ready within {REPORT_SECONDS:.0f} s"
    except KeyboardInterrupt:
        return "the report was interrupted"
    except OSError as error:
        return f"the report could not be made: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines() or ["no message"]
    return f"the report could not be made: {lines[-1]}"

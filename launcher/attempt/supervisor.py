"""One attempt to run a job: claim it, start, watch, judge, clean up.

One loop waits for signals, for what mpirun says, and for time.  When `AttemptRun.run` returns, no process of the attempt is left
on any of its hosts, or its end says which are, and ``end.json`` is written.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Protocol

from launcher.attempt import remote, remote_shell
from launcher.attempt.judge import Evidence, Outcome, judge, why_marks_are_missing, with_exception
from launcher.attempt.program import Program
from launcher.attempt.stopping import Stopper
from launcher.attempt.sweep import sweep
from launcher.attempt.watch import Watch, lost_node, spec_names
from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, BackendError
from launcher.host.processes import node_name
from launcher.host.signals import SignalBox
from launcher.jobdir import claim, words
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.metrics import Epoch, MetricsFollower
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop

TICK = 0.25
"""Seconds between looks at metrics and marks."""
TOUCH = 5.0
"""Seconds between the supervisor's own signs of life."""
SWEEP_MARGIN = 1.0
"""Seconds that what outlives the backend has more than the wrappers, between TERM and KILL."""


class View(Protocol):
    """What a person sees of a run."""

    def started(self, plan: Plan) -> None:
        """The ranks are being started."""
        ...

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Called several times a second with the epochs that were finished since."""
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


class SilentView:
    """Nobody looks."""

    def started(self, plan: Plan) -> None:
        """Nothing is shown."""

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Nothing is shown."""

    def stopping(self, reason: str) -> None:
        """Nothing is shown."""

    def warn(self, message: str) -> None:
        """Nothing is shown."""

    def closed(self) -> None:
        """Nothing is shown."""


class AlreadyClaimedError(Exception):
    """Another supervisor runs, or ran, this attempt; nothing was started."""


class AttemptRun:
    """One attempt; `run` is called once, in a process's main thread."""

    def __init__(self, job: JobPaths, plan: Plan, view: View, signals: SignalBox, *, interactive: bool = False) -> None:
        """The attempt for which a plan was made.

        Args:
            job: the job directory, in which the plan was written.
            plan: what to start.
            view: what a person sees.
            signals: the open box in which the caller collects signals.
            interactive: whether a signal comes from a person: it then means that the job is cancelled, and a second one that the
                person does not want to wait.
        """
        self._job = job
        self._paths = job.attempt(plan.job.attempt)
        self._plan = plan
        self._view = view
        self._signals = signals
        self._program: Program | None = None
        self._events = EventLog(job)
        self._metrics = MetricsFollower(job.metrics)
        self._reported: set[int] = set()
        self._hosts = remote.Hosts()
        self._stopper = Stopper(self._paths, plan, self._events, view.stopping, interactive=interactive)
        self._touch_at = 0.0
        self._remaining: list[str] = []
        self._started = time.time()
        self._begun = time.monotonic()
        self._watch = Watch(self._paths, plan, node_name(), self._begun)

    def run(self) -> AttemptEnd:
        """Run the attempt to its end.

        Raises:
            AlreadyClaimedError: if this attempt has, or had, a supervisor.
            OSError: if the job directory cannot be written at all.
        """
        if not claim.take(self._paths):
            raise AlreadyClaimedError(f"attempt {self._paths.number} of {self._job.id} has a supervisor already")
        self._view.started(self._plan)
        try:
            outcome = self._start_and_wait()
        except BackendError as error:
            outcome = Outcome(words.FAILED, EXIT_FAILED, str(error), cause=words.NOT_STARTED)
        except OSError as error:
            where = error.filename or self._job.root
            reason = f"it could not be started: {where}: {error.strerror}"
            outcome = Outcome(words.FAILED, EXIT_FAILED, reason, cause=words.NOT_STARTED)
        end = self._end(outcome)
        try:
            end.write(self._paths)
        except OSError as error:
            self._warn(f"the end of the attempt could not be noted: {self._paths.end}: {error.strerror}")
        self._note_end(end)
        return end

    @property
    def unexplained(self) -> bool:
        """Whether a signal ended the attempt and nobody has said why."""
        return self._stopper.request is not None and self._stopper.request.unexplained

    def _start_and_wait(self) -> Outcome:
        if self._paths.number > 1:
            sweep(self._job.id, 0.0)  # what is left of earlier attempts
        unfit = self._check_hosts()
        self._stopper.handle_signals(self._signals.take())
        self._stopper.poll_requests()
        if (request := self._stopper.request) is not None:
            return Outcome(words.CANCELLED, EXIT_INTERRUPTED, "stopped before a rank was started", cause=request.cause)
        if unfit is not None:
            return unfit
        self._program = program = self._start()
        self._events.add("started", attempt=self._paths.number, pid=program.pid, argv=list(self._plan.argv))
        while (code := program.poll()) is None:
            self._wait(program)
            self._stopper.handle_signals(self._signals.take())
            self._look()
            self._touch(time.monotonic())
            self._stopper.enforce(time.monotonic(), program, self._warn)
        return self._clean_up_and_judge(program, code)

    def _start(self) -> Program:
        """Start the program that starts the ranks.  Raises BackendError."""
        return Program.start(self._plan, self._paths)

    def _check_hosts(self) -> Outcome | None:
        if not remote.other_hosts(self._plan):
            return None
        remote_shell.write(self._paths)
        self._hosts = remote.check(self._plan, self._paths, self._pending)
        if not self._hosts.faults:
            return None
        away = all(fault.unreachable for fault in self._hosts.faults)
        bad = tuple(dict.fromkeys(fault.host for fault in self._hosts.faults))
        cause = words.LOST_NODE if away else words.NOT_STARTED
        reason = f"ranks cannot be started on these hosts:\n{self._hosts.table()}"
        return Outcome(words.FAILED, EXIT_FAILED, reason, cause=cause, bad_hosts=bad)

    def _pending(self) -> bool:
        self._stopper.handle_signals(self._signals.take())
        return self._stopper.request is not None

    def _wait(self, program: Program) -> None:
        output = program.output
        sources: list[SignalBox | int] = [self._signals]
        if output.open:
            sources.append(output.fileno())
        ready, _, _ = select.select(sources, [], [], TICK)
        if output.open and output.fileno() in ready:
            output.read_some()

    def _look(self) -> None:
        self._view.tick(self._metrics.poll(), self._metrics)
        marks = read_marks(self._paths, self._plan.placement.ranks)
        for mark in marks:
            if mark is not None and mark.exit_code is not None and mark.rank not in self._reported:
                self._report(mark)
        now = time.monotonic()
        self._stopper.note_ends(marks, now)
        self._stopper.poll_requests()
        if self._stopper.request is None and (wanted := self._watch.look(now, marks)) is not None:
            self._stopper.request_stop(wanted)

    def _report(self, mark: RankMark) -> None:
        self._reported.add(mark.rank)
        how = {"exit_code": mark.exit_code, "signal": mark.signal, "stopped": mark.stopped}
        self._events.add("rank-exit", attempt=self._paths.number, rank=mark.rank, **how)
        if mark.lost_output:
            self._warn(f"{mark.lost_output} bytes of output of rank {mark.rank} could not be written to its log")

    def _warn(self, message: str) -> None:
        """Tell a person who looks now, and note it for later."""
        self._view.warn(message)
        self._events.add("warning", attempt=self._paths.number, message=message)

    def _touch(self, now: float) -> None:
        if now >= self._touch_at:
            self._touch_at = now + TOUCH
            with contextlib.suppress(OSError):  # a removed directory or a full disk ends no job
                self._paths.alive.touch()

    def _clean_up_and_judge(self, program: Program, code: int) -> Outcome:
        self._remaining = [f"{os.uname().nodename}:{pid}" for pid in program.stop(self._stopper.grace + SWEEP_MARGIN)]
        unknown: list[str] = []
        if self._hosts.names:
            left, unknown = remote.sweep(self._plan, self._paths, self._stopper.grace + SWEEP_MARGIN)
            self._remaining += left + [f"{host}: could not be asked" for host in unknown]
        self._look()
        marks = read_marks(self._paths, self._plan.placement.ranks)
        finished = self._job.finished.exists() or (False if self._plan.limits.require_finished else None)
        request = self._stopper.request or self._from_outside(marks, unknown)
        missing = any(mark is None or mark.exit_code is None for mark in marks)
        unwritten = why_marks_are_missing(self._paths, program.output.last) if missing else None
        starter_code = 0 if self._stopper.program_hung else code
        return judge(Evidence(tuple(marks), starter_code, request, finished, unwritten))

    def _from_outside(self, marks: list[RankMark | None], unknown: list[str]) -> Stop | None:
        """What ended the ranks although nobody had asked for it; inside a scheduler's job more is known."""
        return lost_node(marks, self._hosts.names, unknown)

    def _end(self, outcome: Outcome) -> AttemptEnd:
        used = tuple(host.name for host in self._plan.placement.hosts) or (node_name(),)
        first = outcome.first_failing
        bad = spec_names(outcome.bad_hosts or ((first.host,) if first is not None else ()), self._hosts.names)
        return AttemptEnd(
            attempt=self._paths.number,
            state=outcome.state,
            cause=outcome.cause,
            exit_code=outcome.exit_code,
            reason=with_exception(outcome, self._job),
            first_failing_rank=first.rank if first is not None else None,
            hosts=used,
            bad_hosts=bad,
            progressed=self._watch.progressed,
            started=round(self._started, 3),
            ended=round(time.time(), 3),
            seconds=round(time.monotonic() - self._begun, 3),
            remaining=tuple(self._remaining),
        )

    def _note_end(self, end: AttemptEnd) -> None:
        left_behind = self._program.left_behind if self._program is not None else 0
        if left_behind and self._stopper.request is None:
            self._warn(f"of processes that the job left behind {left_behind} had to be ended")
        if end.remaining:
            self._warn(f"processes that could not be ended: {', '.join(end.remaining)}")
        self._events.add("attempt-end", **{name: value for name, value in vars(end).items() if value is not None})
        if self._events.error is not None:
            self._warn(f"the job's record is incomplete: {self._job.events}: {self._events.error.strerror}")

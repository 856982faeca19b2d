"""The part of a rank's wrapper that owns the program: starts it, copies its output, shows life, and ends all that comes from it.

It stops the program when it is told to (a signal, or ``stop.json``), when the time limit is over by its own clock, when what
started the rank or the attempt's supervisor has gone, and when a later attempt of the job runs: two may never run at once.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from launcher.attempt.rank.output import LogFile, Output
from launcher.attempt.rank.task import EXIT_NOT_STARTED, NO_PARENT, Task, read_task, start
from launcher.host import processes
from launcher.host.processes import alive, node_name, own_identity
from launcher.host.signals import STOPPING, SignalBox
from launcher.host.text import why
from launcher.jobdir import variables, words
from launcher.jobdir.claim import superseded
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import PlanFileError
from launcher.jobdir.stop import Stop

GRACE = 5.0
"""Seconds between the first signal to stop and KILL."""
DRAIN = 0.5
"""Seconds after the program's end for which output of what it left behind is still taken."""
POLL = 1.0
"""Seconds between looks at ``stop.json`` and at the supervisor."""
HEARTBEAT = 5.0
SILENCE = 120.0
"""Seconds without a touch of ``alive`` after which a supervisor on another host is taken for lost.  File systems that several
hosts share may show a change up to a minute late."""
EXIT_NOT_FOUND = 127
EXIT_SUPERSEDED = 75


def own_name() -> str:
    """The value of `launcher.jobdir.variables.SUPERVISOR` for this process."""
    return "{host} {pid} {pid_started}".format(**own_identity())


class Lifeline:
    """Watches one supervisor.

    Only a supervisor that was seen alive can be lost: nothing is concluded if processes of other containers are invisible, or if
    times of files do not change.
    """

    def __init__(self, attempt: AttemptPaths, name: str) -> None:
        self._file = attempt.alive
        host, pid, started = [*name.split(), "", "", ""][:3]
        self._identity = (int(pid), int(started)) if pid.isdigit() and started.isdigit() else (None, None)
        self._local = host == os.uname().nodename and alive(*self._identity)
        self._seen: int | None = None
        self._changed: float | None = None

    def lost(self) -> bool:
        """Whether the supervisor has gone."""
        if self._local:
            return not alive(*self._identity)
        try:
            stamp = os.stat(self._file).st_mtime_ns  # noqa: PTH116 - called every second by every rank
        except OSError:
            return False
        now = time.monotonic()
        if stamp != self._seen:
            if self._seen is not None:
                self._changed = now
            self._seen = stamp
        return self._changed is not None and now - self._changed > SILENCE


@dataclass(frozen=True)
class StopRequest:
    """The program is to end."""

    cause: str | None
    """One of the causes of `launcher.jobdir.words`; None if only a signal is known."""
    gentle: bool = False
    """Whether the program gets time to save its state and to end by itself."""
    signal: int = signal.SIGTERM
    """What the program is sent if it gets no such time."""


@dataclass(frozen=True)
class Running:
    """Nobody has asked for the end."""


@dataclass(frozen=True)
class Saving:
    """The program was told to save its state and to end by itself."""

    until: float
    """When it is told to end; seconds of the monotonic clock."""
    cause: str | None = None


@dataclass(frozen=True)
class Stopping:
    """The program was told to end."""

    kill_at: float
    """When it is killed; seconds of the monotonic clock."""


Phase = Running | Saving | Stopping


def is_gentle(cause: str | None, checkpoint_signal: str | None) -> bool:
    """Whether a cause leaves the training time to save its state."""
    return cause == words.PREEMPTION and checkpoint_signal is not None


class Keeper:
    """One running program, its output and its mark."""

    def __init__(
        self, attempt: AttemptPaths, task: Task, mark: RankMark, process: subprocess.Popen[bytes], output: Output
    ) -> None:
        self._attempt = attempt
        self._path = attempt.rank_mark(mark.rank)
        self._task = task
        self._process = process
        self._output = output
        self.mark = replace(mark, pid=process.pid, heartbeat=mark.started)
        self._phase: Phase = Running()
        self._grace = variables.seconds_in(variables.GRACE_SECONDS, GRACE)
        self._beat_every = variables.seconds_in(variables.HEARTBEAT_SECONDS, HEARTBEAT)
        self._lifeline = Lifeline(attempt, os.environ.get(variables.SUPERVISOR, ""))
        begun = time.monotonic()
        self._beat_at = begun + self._beat_every
        self._look_at = begun
        self._limits: list[tuple[float, StopRequest]] = []
        """What the time limit asks for and when, in the order of time."""
        if task.time_limit:
            limit = begun + task.time_limit
            if task.checkpoint_signal:
                self._limits.append((limit - task.before_limit, StopRequest(words.TIME_LIMIT, gentle=True)))
            self._limits.append((limit, StopRequest(words.TIME_LIMIT)))

    def run(self, line: int, signals: SignalBox) -> RankMark:
        """Wait for the program's end, and end what it leaves; returns the last mark, which is not written yet.

        Args:
            line: brings signals that the wrapper has got, a byte each; its end means that the wrapper was killed.
            signals: those that reached this process itself.
        """
        self.mark.write(self._path)
        sources = {line, signals.fileno()}
        while self._process.poll() is None:
            ready = self._wait(sources)
            if line in ready:
                messages = os.read(line, 256)
                if not messages:
                    sources.discard(line)
                self._handle_signals(list(messages) or [NO_PARENT])
            self._handle_signals(signals.take())
            processes.reap_others(self._process.pid)
            self._keep_time(time.monotonic())
        self._output.drain(DRAIN)
        processes.kill_descendants()
        self._output.close()
        return self.mark.ended_now(self._process.returncode, lost_output=self._output.lost)

    def _wait(self, sources: set[int]) -> list[int]:
        moments = [self._beat_at, self._look_at, *(moment for moment, _ in self._limits[:1])]
        match self._phase:
            case Saving(until):
                moments.append(until)
            case Stopping(kill_at):
                moments.append(kill_at)
        wanted = [*sources, *([self._output.fileno()] if self._output.open else [])]
        ready, _, _ = select.select(wanted, [], [], max(0.0, min(moments) - time.monotonic()))
        if self._output.open and self._output.fileno() in ready:
            self._output.read_some()
        return list(ready)

    def _handle_signals(self, numbers: list[int]) -> None:
        for number in numbers:
            if number == NO_PARENT:
                self._request_stop(StopRequest(words.STARTER_GONE))
            elif number in STOPPING:
                request = Stop.read(self._attempt)
                self._request_stop(self._asked_by(request.cause if request else None, number))
            elif number == signal.SIGCONT:
                self._send(number)
            else:
                self._pass_on(number)

    def _asked_by(self, cause: str | None, number: int = signal.SIGTERM) -> StopRequest:
        return StopRequest(cause, is_gentle(cause, self._task.checkpoint_signal), number)

    def _keep_time(self, now: float) -> None:
        if now >= self._beat_at:
            self._beat_at = now + self._beat_every
            self.mark = self.mark.beat(self._path)
            if superseded(self._attempt):
                self._request_stop(StopRequest(words.SUPERSEDED))
        if now >= self._look_at:
            self._look_at = now + POLL
            self._poll_requests()
        while self._limits and now >= self._limits[0][0]:
            self._request_stop(self._limits.pop(0)[1])
        match self._phase:
            case Saving(until, cause) if now >= until:
                self._request_stop(StopRequest(cause))
            case Stopping(kill_at) if now >= kill_at:
                self._phase = Stopping(now + self._grace)
                self._send(signal.SIGKILL)

    def _poll_requests(self) -> None:
        """Look for what asks for the end without a signal."""
        if isinstance(self._phase, Stopping):
            return
        if (request := Stop.read(self._attempt)) is not None:
            self._request_stop(self._asked_by(request.cause))
        elif self._lifeline.lost() or self._attempt.end.exists():
            self._request_stop(StopRequest(words.SUPERVISOR_GONE))

    def _request_stop(self, request: StopRequest) -> None:
        """Everything that asks for the program's end asks here; the mark keeps the first cause."""
        match self._phase:
            case Saving() | Stopping() if request.gentle:
                return
            case Saving(cause=words.PREEMPTION) if request.cause in (words.STARTER_GONE, words.SUPERVISOR_GONE):
                return  # a scheduler that preempts a job ends its other processes as well
            case Running() if request.gentle:
                self._phase = Saving(time.monotonic() + self._task.before_limit, request.cause)
                self._note_stop(request.cause)
                self._tell_to_save()
            case Running() | Saving():
                self._send(request.signal)
                self._phase = Stopping(time.monotonic() + self._grace)
                self._note_stop(request.cause)
            case Stopping():
                self._send(request.signal)

    def _tell_to_save(self) -> None:
        number = getattr(signal, f"SIG{self._task.checkpoint_signal}", None)
        if number is not None:
            self._pass_on(number)

    def _note_stop(self, cause: str | None) -> None:
        if not self.mark.stopped:
            self.mark = replace(self.mark, stopped=True, stop_cause=cause, heartbeat=time.time())
            self.mark.write(self._path)

    def _pass_on(self, number: int) -> None:
        """Send a signal to the processes that handle it: most signals end others, and a training's helpers expect none."""
        processes.send(processes.catchers(self._process.pid, number), number)

    def _send(self, number: int) -> None:
        """Send a signal to everything that comes from the program, whatever session it is in."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
        own_group = self._process.pid
        processes.send([entry for entry in processes.descendants(os.getpid()) if processes.group(entry.pid) != own_group], number)


def keep(attempt: AttemptPaths, rank: int, line: int) -> int:
    """Run one rank to its end; returns the exit code.

    Raises:
        OSError, ValueError, KeyError: if the job directory cannot be used.
    """
    processes.become_subreaper()
    with SignalBox() as signals:
        mark = RankMark(
            rank=rank, host=node_name(), wrapper_pid=os.getpid(), attempt=attempt.number, started=time.time()
        )
        if superseded(attempt):
            return _refuse(attempt, mark)
        log = LogFile(attempt.job.rank_log(rank), attempt=attempt.number)
        try:
            task = read_task(attempt, rank, os.environ)
            process, output = start(task, log)
        except OSError as error:
            code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_STARTED
            return _not_started(attempt, mark, log, why(error), code)
        except PlanFileError as error:
            return _not_started(attempt, mark, log, str(error), EXIT_NOT_STARTED)
        ended = Keeper(attempt, task, mark, process, output).run(line, signals)
        ended.write(attempt.rank_mark(rank))
        return ended.exit_code or 0


def _refuse(attempt: AttemptPaths, mark: RankMark) -> int:
    text = f"attempt {attempt.number} is over: a later one of this job runs"
    replace(mark, error=text, exit_code=EXIT_SUPERSEDED, ended=time.time()).write(attempt.rank_mark(mark.rank))
    return EXIT_SUPERSEDED


def _not_started(attempt: AttemptPaths, mark: RankMark, log: LogFile, text: str, code: int) -> int:
    log.write(f"hvdgrab-launch: the command could not be started: {text}\n".encode("utf-8", "surrogateescape"))
    log.close()
    replace(mark, error=text, exit_code=code, ended=time.time()).write(attempt.rank_mark(mark.rank))
    return code

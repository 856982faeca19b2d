"""How a supervisor comes to life and is looked at.

A starter brings ``python -m launcher.supervise JOBDIR ATTEMPT`` to life somewhere and can say later whether it still lives.  It
never judges how an attempt ended: only the attempt's own ``end.json`` does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from launcher.attempt.sweep import marked
from launcher.errors import LauncherError
from launcher.host.processes import alive, start_ticks
from launcher.host.text import why
from launcher.jobdir import variables
from launcher.jobdir.claim import Claim
from launcher.jobdir.paths import JobPaths

if TYPE_CHECKING:
    from launcher.jobdir.plan import Plan

SUPERVISOR = "launcher.supervise"
"""The module that a supervisor runs; `_is_supervisor` recognises it in /proc."""
Handle = Mapping[str, Any]
"""What names a started supervisor for good; JSON, with ``kind``: ``{"kind": "process", "host", "pid", "pid_started",
"dir", "attempt"}`` or ``{"kind": "slurm", "job_id", "cluster"}``."""


@dataclass(frozen=True)
class Alive:
    """It was seen."""

    detail: str | None = None
    """More about it, for people, such as ``pending in partition gpu: Resources``."""
    running: bool = True
    """Whether it has been started; False while a scheduler holds it back."""
    note: str | None = None
    """What people should know of one that was started: that a scheduler has suspended it."""
    attempt: int | None = None
    """The newest attempt that it has begun, if that is a later one than it was started for: a scheduler may put a job back."""


@dataclass(frozen=True)
class Gone:
    """It is certainly not there any more."""

    cause: str | None = None
    """What ended it, a word of `launcher.jobdir.words`, if a scheduler says so: for attempts that could not say it themselves."""
    reason: str | None = None
    """The same in words."""
    attempt: int | None = None
    """As `Alive.attempt`."""


@dataclass(frozen=True)
class HeldByAnother:
    """It is gone, because another supervisor of the same attempt was quicker, and runs it."""

    handle: Handle
    """The other supervisor."""


@dataclass(frozen=True)
class Unknown:
    """It cannot be known at present."""

    reason: str


Seen = Alive | Gone | HeldByAnother | Unknown


class Unreachable(LauncherError):
    """Whether an attempt was started cannot be known at present: nothing may be started in its place."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where
        """What cannot be reached, such as one of several clusters: jobs that go elsewhere need not wait."""


class StartError(LauncherError):
    """An attempt was certainly not started, and trying again as it stands is of no use."""


class Starter(Protocol):
    """One way to start supervisors.  Every method may be called again after a crash of the caller."""

    name: str
    """For messages: local, slurm."""
    interval: float
    """Seconds between two calls of `look`, at least; 0 if looking costs nothing."""

    def start(self, job: JobPaths, attempt: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
        """Bring the supervisor of an attempt to life.

        Called again for the same attempt it may start a second supervisor, which finds the attempt's claim and ends.

        Args:
            job: the job directory, with ``attempts/000N/plan.json`` written.
            attempt: from 1.
            plan: what that file holds.
            environment: the whole environment of the supervisor.

        Raises:
            StartError: if it certainly was not started.
            Unreachable: if that cannot be known.
        """
        ...

    def find(self, job: JobPaths, attempt: int) -> Handle | None:
        """What an earlier `start` of this attempt may have brought to life, living or not; None if there was none.

        Raises:
            Unreachable: if it cannot be known.
        """
        ...

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, Seen]:
        """What has become of supervisors, in one query for all of them.

        Args:
            handles: by job id.

        Returns:
            By job id, one for every handle.
        """
        ...

    def stop(self, handle: Handle, kill: bool) -> None:
        """Ask a supervisor to stop its attempt, or kill it.  Harmless if it has ended.  Returns at once."""
        ...


class LocalStarter:
    """A `launcher.attempt.starter.Starter` whose supervisors are processes of this host."""

    name = "local"
    interval = 0.0

    def __init__(self, host: str | None = None, umask: int = -1) -> None:
        self._host = host or os.uname().nodename
        self._umask = umask
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._watched: dict[int, int] = {}

    def start(self, job: JobPaths, attempt: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
        """Start the supervisor in a session of its own, with its output in the attempt's directory."""
        inherited = {name: value for name, value in environment.items() if name not in plan.launch.scrubbed}
        own = {variables.JOB_ID: job.id, variables.ATTEMPT: str(attempt)}
        output = job.attempt(attempt).root / "supervisor.log"
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(file, "ab") as stream:
                process = subprocess.Popen(
                    [plan.launch.python, "-m", SUPERVISOR, str(job.root), str(attempt)],
                    cwd=job.root, env={**inherited, **plan.launch.environment, **own},
                    stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
                    umask=self._umask,
                )  # fmt: skip
        except (OSError, ValueError) as error:
            said = why(error, plan.launch.python)
            raise StartError(f"the supervisor of attempt {attempt} could not be started: {plan.launch.python}: {said}") from error
        self._children[process.pid] = process
        return self._handle(job, attempt, process.pid, start_ticks(process.pid))

    def find(self, job: JobPaths, attempt: int) -> Handle | None:
        """The process that claimed the attempt, on whatever host; if none has yet, a living one that was started for it."""
        claim = Claim.read(job.attempt(attempt))
        if claim is not None:
            return self._handle(job, attempt, claim.pid, claim.pid_started, claim.host)
        for entry in marked(job.id, attempt):
            if _is_supervisor(entry.pid):
                return self._handle(job, attempt, entry.pid, start_ticks(entry.pid))
        return None

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, Seen]:
        """Whether the processes live; a few reads of /proc for all of them."""
        self._collect()
        seen = {job_id: self._look(handle) for job_id, handle in handles.items()}
        self._watch({handle["pid"] for job_id, handle in handles.items() if isinstance(seen[job_id], Alive)})
        return seen

    def stop(self, handle: Handle, kill: bool) -> None:
        """Send TERM or KILL to the process."""
        if handle["host"] == self._host and alive(handle["pid"], handle["pid_started"]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle["pid"], signal.SIGKILL if kill else signal.SIGTERM)

    def watched(self) -> list[int]:
        """Descriptors that become readable when a supervisor ends, for a loop that waits; empty on old kernels."""
        return list(self._watched.values())

    def _handle(self, job: JobPaths, attempt: int, pid: int, started: int | None, host: str | None = None) -> Handle:
        process = {"kind": "process", "host": host or self._host, "pid": pid, "pid_started": started}
        return {**process, "dir": str(job.root), "attempt": attempt}

    def _look(self, handle: Handle) -> Seen:
        if handle["host"] != self._host:
            return Unknown(f"it was begun on host {handle['host']}, which this host cannot ask")
        return Alive() if alive(handle["pid"], handle["pid_started"]) else self._gone(handle)

    def _gone(self, handle: Handle) -> Seen:
        """What has become of the attempt of a process that has ended: another supervisor may have won the race for its claim."""
        if "dir" not in handle:
            return Gone()  # the version before wrote the handle
        job = JobPaths(Path(handle["dir"]))
        other = None if job.attempt(handle["attempt"]).end.exists() else self.find(job, handle["attempt"])
        if other is None or other == handle or isinstance(self._look(other), Gone):
            return Gone()
        return HeldByAnother(other)

    def _collect(self) -> None:
        """Let go of children that have ended."""
        for pid in [pid for pid, process in self._children.items() if process.poll() is not None]:
            del self._children[pid]

    def _watch(self, pids: set[int]) -> None:
        for pid in set(self._watched) - pids:
            os.close(self._watched.pop(pid))
        for pid in pids - set(self._watched):
            with contextlib.suppress(OSError):
                self._watched[pid] = os.pidfd_open(pid)


def _is_supervisor(pid: int) -> bool:
    try:
        return SUPERVISOR.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False

"""What the daemon's parts share: the context, its clocks, the submitters' environments, faults that last, and places to crash."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

from launcher.attempt.starter import Starter
from launcher.daemon.dirs import Dirs
from launcher.daemon.http.messages import JobView
from launcher.daemon.queue import Capacity
from launcher.daemon.record import Job, Store
from launcher.errors import LauncherError
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.variables import CRASH_AT

log = logging.getLogger("hvdgrab.daemon")


def _printable(record: logging.LogRecord) -> bool:
    """Names of files need not be text; every line of the log is."""
    record.msg, record.args = record.getMessage().encode("utf-8", "backslashreplace").decode("utf-8"), ()
    return True


log.addFilter(_printable)


@dataclass
class Context:
    """Made once, when the daemon starts."""

    store: Store
    dirs: Dirs
    starters: Mapping[str, Starter]
    """By the name that `launcher.daemon.record.Job.starter` holds."""
    clock: Clock
    capacity: Capacity
    random: Random = field(default_factory=Random)
    host: str = field(default_factory=lambda: os.uname().nodename)
    wake: Callable[[], None] = lambda: None
    """Ends the loop's wait: there is something to do."""
    changed: Callable[[], None] = lambda: None
    """Tells clients that wait that a job has changed."""
    reasons: dict[str, str] = field(default_factory=dict)
    """What queued jobs wait for, by id."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What cannot be done now with a job, by id; see `Faults`."""
    problem: str | None = None
    """What keeps the daemon from its work now."""
    refused: str | None = None
    """Why a request could not be written down; None again once writing works."""
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def environments(self) -> Environments:
        """The submitters' environments."""
        return Environments(self.dirs.environments)

    def refuse(self, text: str) -> None:
        """Note why a request cannot be written down; log it when it is new."""
        if self.refused != text:
            log.error("a request is refused: %s", text)
        self.refused = text

    def view(self, job: Job) -> JobView:
        """A job as clients see it."""
        view = job.view(self.host, self.reasons.get(job.id))
        trouble = None if view.final else self.troubles.get(job.id)
        return view if trouble is None else replace(view, reason=f"{view.reason}; {trouble}" if view.reason else trouble)

    def note(self, job: Job, event: str, **details: Any) -> None:
        """Append an event to a job's own log; a directory that is gone or full is only mentioned in the daemon's log."""
        events = EventLog(JobPaths(Path(job.dir)))
        events.add(event, **details)
        if events.error is not None:
            log.warning("%s: the event %s cannot be noted: %s", job.id, event, events.error)


class Clock(Protocol):
    """Time, for the daemon; tests have their own."""

    def wall(self) -> float:
        """Unix time in seconds: for what people read.  It may jump."""
        ...

    def steady(self) -> float:
        """Seconds from some point on, which go on while the host sleeps and never go back: for all waiting."""
        ...


class SystemClock:
    """The host's clocks."""

    def wall(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def steady(self) -> float:
        """Seconds since the host was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class Environments:
    """One file a job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, job_id: str, environment: Mapping[str, str]) -> None:
        """Keep a job's environment.  Raises OSError if it cannot be written."""
        path = self._path(job_id)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(number, "w", encoding="ascii") as file:
                json.dump(dict(environment), file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def load(self, job_id: str) -> dict[str, str] | None:
        """A job's environment; None if it was lost, as by a restart of the host."""
        try:
            number = os.open(self._path(job_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(number, encoding="ascii") as file:
                data = json.load(file)
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def forget(self, job_id: str) -> None:
        """Remove a job's environment."""
        self._path(job_id).unlink(missing_ok=True)

    def kept(self) -> list[str]:
        """Ids of all jobs whose environment is here."""
        return [path.stem for path in self._directory.glob("[!.]*.json")]

    def forget_unfinished(self) -> None:
        """Remove what a killed daemon had begun to write; only if no other daemon lives."""
        for path in self._directory.glob(".*"):
            path.unlink(missing_ok=True)

    def _path(self, job_id: str) -> Path:
        return self._directory / f"{job_id}.json"


LOOK, STOP, START, CLOSE = "looked at", "stopped", "started", "closed"
"""What cannot be done with a job now; of each kind a job has one fault at most."""


def in_words(error: Exception) -> str:
    """An error for people: which file and why, or what an error of the program itself says."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Faults:
    """Faults that last: logged when they begin, when they change and when they are over.  For the engine's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._present: dict[tuple[str, str], str] = {}

    def note(self, job: Job, kind: str, error: Exception) -> None:
        """Log and show a job's fault if it is new; to be called while the error is handled."""
        text = f"it cannot be {kind} now: {in_words(error)}"
        if self._present.get((job.id, kind)) == text:
            return
        self._present[job.id, kind] = text
        log.exception("%s: %s; it is tried again, and this is said once", job.id, text)
        self._context.note(job, "trouble", reason=text)
        self._show(job.id)

    def over(self, job: Job, kind: str) -> None:
        """Note that the action succeeded; logged only if it had failed before."""
        if self._present.pop((job.id, kind), None) is not None:
            log.info("%s: it can be %s again", job.id, kind)
            self._context.note(job, "trouble-over", what=kind)
            self._show(job.id)

    def forget(self, job: Job) -> None:
        """Drop the faults of a job that has ended."""
        for key in [key for key in self._present if key[0] == job.id]:
            del self._present[key]
        self._show(job.id)

    def note_starter(self, name: str, error: Exception) -> None:
        """As `note`, for the query about all jobs of a starter."""
        text = str(error) if isinstance(error, LauncherError) else in_words(error)
        if self._present.get(("", name)) != text:
            self._present["", name] = text
            unexpected = None if isinstance(error, LauncherError) else error
            log.warning("%s: %s; it is tried again, and this is said once", name, text, exc_info=unexpected)

    def over_starter(self, name: str) -> None:
        """As `over`, for that query."""
        if self._present.pop(("", name), None) is not None:
            log.info("%s: it answers again", name)

    def _show(self, job_id: str) -> None:
        """Show clients what is wrong with a job now."""
        texts = [text for (owner, _), text in self._present.items() if owner == job_id]
        if texts:
            self._context.troubles[job_id] = "; ".join(texts)
        else:
            self._context.troubles.pop(job_id, None)
        self._context.changed()


CRASH_STEPS = (
    "submit-environment-kept",
    "submit-recorded",
    "submit-noted",
    "cancel-marked",
    "cancel-recorded",
    "start-recorded",
    "start-planned",
    "start-spawned",
    "start-confirmed",
    "end-seen",
    "end-recorded",
    "close-noted",
    "close-forgotten",
    "spool-taken",
    "spool-written",
    "spool-submitted",
)
"""The places at which a test can end the daemon as a power failure would, by ``HVDGRAB_CRASH_AT=name[:n]`` at the n-th passage;
in the order of a job's life."""
_passed: dict[str, int] = {}


def step(name: str) -> None:
    """Pass one of `CRASH_STEPS`."""
    wanted = os.environ.get(CRASH_AT)
    if wanted is None:
        return
    place, _, count = wanted.partition(":")
    _passed[name] = _passed.get(name, 0) + 1
    if place == name and _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)

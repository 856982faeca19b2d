"""What the daemon's parts share."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from launcher.attempt.starter import Starter
from launcher.daemon.clock import Clock
from launcher.daemon.dirs import Dirs
from launcher.daemon.environments import Environments
from launcher.daemon.http.messages import JobView
from launcher.daemon.queue import Capacity
from launcher.daemon.record.jobs import Store
from launcher.daemon.record.rows import Job
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths

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
    """By the name that `launcher.daemon.record.rows.Job.starter` holds."""
    clock: Clock
    capacity: Capacity
    random: Random = field(default_factory=Random)
    host: str = field(default_factory=lambda: os.uname().nodename)
    wake: Callable[[], None] = lambda: None
    """Ends the loop's wait: there is something to do."""
    changed: Callable[[], None] = lambda: None
    """Tells whoever waits for a job that one has changed."""
    reasons: dict[str, str] = field(default_factory=dict)
    """What queued jobs wait for, by id."""
    troubles: dict[str, str] = field(default_factory=dict)
    """What cannot be done at present with a job, by id; see `launcher.daemon.faults`."""
    problem: str | None = None
    """What keeps the daemon from its work at present."""
    refused: str | None = None
    """Why a request could not be written down; None again once writing works."""
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def environments(self) -> Environments:
        """The submitters' environments."""
        return Environments(self.dirs.environments)

    def refuse(self, text: str) -> None:
        """Keep in mind, and say once, why a request cannot be written down."""
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

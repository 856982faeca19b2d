"""Attempts whose supervisor is a process of another host: a login node that has crashed, or whose daemon has lost the record.

This host cannot ask it.  What it can see is the file that a supervisor touches as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from launcher.daemon.context import Context, log
from launcher.daemon.ending import Ending
from launcher.daemon.record.rows import Job
from launcher.errors import EXIT_INTERRUPTED
from launcher.host.clock import Unchanged
from launcher.host.text import duration
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.words import CANCELLED

SILENT_SECONDS = 600.0
"""Seconds without a touch after which a job that is to be cancelled is given up; ten times what file systems need to show one."""


class Elsewhere:
    """Watches the signs of life of such attempts by this host's own steady clock; for the engine's thread."""

    def __init__(self, context: Context, ending: Ending) -> None:
        self._context = context
        self._ending = ending
        self._touches = Unchanged()

    def reason(self, job: Job, reason: str) -> str:
        """Why its state is unknown, and what to do about it once it has shown no life for long."""
        if not self._silent(job):
            return reason
        return (
            f"{reason}; it has shown no life for {duration(SILENT_SECONDS)}: if that host is gone for good, "
            f"`hvdgrab-launch cancel {job.id}` gives it up"
        )

    def given_up(self, job: Job) -> bool:
        """End a job that is to be cancelled, where nothing was heard of it for long; returns whether that was so."""
        if not job.cancel or not self._silent(job):
            return False
        host = (job.handle or {}).get("host")
        text = f"cancelled; its host {host} cannot be asked, and it had shown no life for {duration(SILENT_SECONDS)}"
        now = self._context.clock.wall()
        end = AttemptEnd(job.attempt, CANCELLED, CANCELLED, EXIT_INTERRUPTED, text, started=now, ended=now)
        try:
            end.write(_attempt(job))  # ranks that live all the same see it, and end
        except OSError as error:
            log.warning("%s: its end cannot be noted in its directory: %s", job.id, error)
        self._context.note(job, "attempt-end", attempt=job.attempt, state=CANCELLED, cause=CANCELLED, reason=text)
        self._ending.finish_cancelled(job, text)
        self._touches.forget((job.id, job.attempt))
        return True

    def _silent(self, job: Job) -> bool:
        """Whether its file has not been touched for long, as far as this daemon has seen."""
        stamp = 0
        with contextlib.suppress(OSError):
            stamp = os.stat(_attempt(job).alive).st_mtime_ns  # noqa: PTH116 - called often
        return self._touches.seconds((job.id, job.attempt), stamp, self._context.clock.steady()) >= SILENT_SECONDS


def _attempt(job: Job) -> AttemptPaths:
    return JobPaths(Path(job.dir)).attempt(job.attempt)

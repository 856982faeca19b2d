"""All jobs that can be seen: those of the daemon's record, and beside them those that ran in the foreground.

The commands that only read work without a daemon as well: from the record's file, and they say so on stderr.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cli.absent import sentence
from launcher.cli.directory import JobRecord, read_record
from launcher.cli.guard import complain
from launcher.cli.resolve import Known, resolve, resolve_all
from launcher.daemon.http.client import Client, NotRunningError, read_record_offline
from launcher.daemon.http.messages import JobView
from launcher.errors import UnreachableError
from launcher.jobdir.paths import JobPaths, jobs_root, list_jobs
from launcher.jobdir.plan import Plan, PlanFileError
from launcher.jobdir.words import UNKNOWN


@dataclass(frozen=True)
class Listed:
    """A job, and who keeps its record."""

    view: JobView
    kept: bool
    """Whether it is in the daemon's record; else its directory is all that there is."""
    foreground: bool = False
    """Whether a command ran it in the foreground; neither this nor `kept`: another record holds it, or none."""

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**self.view.to_json(), "recorded": self.kept}


class Book:
    """The jobs as they were when it was opened."""

    def __init__(self, recorded: Sequence[JobView], root: Path) -> None:
        self._recorded = {view.id: view for view in recorded}
        self._beside = {job.id: job for job in list_jobs(root) if job.id not in self._recorded}

    def all(self) -> list[Listed]:
        """All of them, oldest first."""
        jobs = [*(Listed(view, True) for view in self._recorded.values()),
                *(_beside(job) for job in self._beside.values())]  # fmt: skip
        return sorted(jobs, key=lambda job: job.view.submitted)

    def known(self) -> list[Known]:
        """What finding needs, oldest first; reads no job directory.  Jobs of one second stay in the record's order."""
        recorded = [Known(view.id, view.name, view.group, not view.final) for view in self._recorded.values()]
        beside = [Known(job.id, job.id[:-21]) for job in self._beside.values()]
        return sorted([*recorded, *beside], key=lambda known: known.id[-20:-5])

    def one(self, wanted: str) -> list[Listed]:
        """What is meant: one job, or all of a group."""
        return [self._listed(id) for id in resolve(wanted, self.known())]

    def several(self, wanted: Sequence[str], *, prefer_active: bool = False) -> list[Listed]:
        """The same for several words, each job once."""
        return [self._listed(id) for id in resolve_all(wanted, self.known(), prefer_active=prefer_active)]

    def _listed(self, id: str) -> Listed:
        view = self._recorded.get(id)
        return Listed(view, True) if view is not None else _beside(self._beside[id])


def _beside(job: JobPaths) -> Listed:
    record = read_record(job)
    foreground = any(event["event"] == "submitted" for event in record.events)
    return Listed(_view(job, record), False, foreground)


def directory_view(job: JobPaths) -> JobView:
    """A job that is in no record, as its directory shows it."""
    return _view(job, read_record(job))


def _view(job: JobPaths, record: JobRecord) -> JobView:
    queued = next((event for event in record.events if event["event"] == "queued"), {})
    submitted = record.submitted or queued.get("time")
    plan = None if record.ranks else _plan(job)
    reason = record.reason
    if record.submitted is None and record.state == UNKNOWN:
        reason = "taken in by the daemon of another HVDGRAB_STATE" if queued else "nobody has taken it in"
    numbers = job.attempt_numbers()
    return JobView(
        id=job.id,
        name=job.id[:-21],
        state=record.state,
        exit_code=record.exit_code,
        dir=record.dir,
        reason=reason,
        submitted=submitted or 0.0,
        started=record.submitted,
        finished=record.finished,
        seconds=record.seconds,
        ranks=record.ranks or queued.get("ranks") or (plan.placement.ranks if plan else 0),
        backend=record.backend or queued.get("backend") or (plan.launch.backend if plan else ""),
        attempt=numbers[-1] if numbers else 0,
        attempts=sum(job.attempt(number).end.exists() for number in numbers),
        group=None,
        priority=0,
        owner="",
        next_try=None,
    )


def _plan(job: JobPaths) -> Plan | None:
    try:
        return Plan.read(job.plan)
    except PlanFileError:
        return None


def open_book(jobs_dir: str | None, client: Client | None = None) -> Book:
    """The jobs of the record and of a jobs directory.

    Args:
        jobs_dir: the ``--jobs-dir`` option.
        client: a daemon to ask; without one, a running daemon is asked, else the record is read from its file.
    """
    root = jobs_root(jobs_dir)
    return Book(client.jobs() if client is not None else _read(), root)


def _read() -> list[JobView]:
    try:
        client = Client.connect(start=False)
        views = client.jobs()
        if client.problem:
            complain(f"warning: the daemon is kept from its work: {client.problem}")
        return views
    except NotRunningError:
        record = read_record_offline()
        if record.owner not in (None, socket.gethostname()) or any(not view.final for view in record.views):
            complain(f"{sentence(record)}. Shown is what the record holds")
    except UnreachableError as error:
        record = read_record_offline()
        complain(f"{error}. Shown is what the record holds")
    return list(record.views)

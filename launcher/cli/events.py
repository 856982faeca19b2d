"""`events`: what happened to a job."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.cli.book import Listed, directory_view, open_book
from launcher.cli.guard import complain
from launcher.cli.logs import has_ended
from launcher.cli.terminal import printable
from launcher.cli.texts import iso, moment
from launcher.daemon.http.client import Client
from launcher.errors import UnreachableError, UsageError
from launcher.host.text import duration
from launcher.jobdir.events import read_events
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import LIVE

POLL_SECONDS = 0.5
_HIDDEN = ("time", "event", "argv", "pid_started", "processes")
_TIMES = ("time", "at", "started", "ended", "submitted", "finished")
"""Unix times in ``events.jsonl``."""


def events(wanted: str, jobs_dir: str | None, *, follow: bool, as_json: bool) -> int:
    """Print a job's events, oldest first; returns the exit code."""
    if follow and as_json:
        raise UsageError("-f does not go with --json, which prints one document")
    jobs = open_book(jobs_dir).one(wanted)
    if as_json:
        found = [{"job": job.view.id, **event} for job in jobs for event in _events(job)]
        print(json.dumps([with_times(event) for event in sorted(found, key=lambda event: float(event.get("time") or 0.0))]))
        return 0
    if follow and len(jobs) > 1:
        raise UsageError(f"{wanted!r} is a group of {len(jobs)} jobs; -f follows one")
    for job in jobs:
        if len(jobs) > 1:
            print(f"{job.view.id}:")
        if not _print(_events(job), after=0):
            complain(f"no event of {job.view.id} is known: {JobPaths(Path(job.view.dir)).events} is not there")
    if follow:
        _follow(jobs[0])
    return 0


def _events(job: Listed) -> list[dict[str, Any]]:
    """From the job directory, which holds all of them; where it is gone, from the daemon."""
    path = JobPaths(Path(job.view.dir)).events
    if path.exists() or not job.kept:
        return read_events(path)
    try:
        return Client.connect(start=False).events(job.view.id)
    except UnreachableError:
        return []


def _follow(job: Listed) -> None:
    seen = len(_events(job))
    while True:
        ended = _has_ended(job)
        found = _events(job)
        seen = _print(found, after=seen)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _has_ended(job: Listed) -> bool:
    if not job.kept:
        return directory_view(JobPaths(Path(job.view.dir))).state not in LIVE
    return has_ended(job.view)


def _print(found: Sequence[dict[str, Any]], after: int) -> int:
    for event in found[after:]:
        print(line(event), flush=True)
    return len(found)


def with_times(event: dict[str, Any]) -> dict[str, Any]:
    """An event with its times as ISO 8601 with a zone; what is no time stays."""
    return {name: iso(value) if name in _TIMES and _is_number(value) else value for name, value in event.items()}


def line(event: dict[str, Any]) -> str:
    """One event for people: time, name, and what is known."""
    when = moment(event["time"]) if _is_number(event.get("time")) else None
    known = {name: value for name, value in event.items() if name not in _HIDDEN and value not in (None, "", [])}
    details = " ".join(f"{name}={_value(_readable(name, value))}" for name, value in known.items())
    return printable(f"{when or '-':<19}  {event['event']:<12} {details}".rstrip())


def _readable(name: str, value: Any) -> Any:
    if not _is_number(value):
        return value
    if name in _TIMES:
        return moment(value) or value
    return duration(value) if name == "seconds" else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if isinstance(value, str) and (" " in text or "\n" in text) else text

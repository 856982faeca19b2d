"""What happened to a job: ``events.jsonl``, written as it happens and read back as the job's state."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.host.files import open_own
from launcher.host.processes import alive, own_identity, process_table
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import FINAL, RUNNING, STARTING, UNKNOWN

__all__ = ["EventLog", "JobRecord", "own_identity", "read_events", "read_record"]


class EventLog:
    """Appends events; each is one JSON object a line with ``time`` (Unix, seconds) and ``event``."""

    def __init__(self, job: JobPaths) -> None:
        self._path = job.events
        self.error: OSError | None = None
        """The first failure to write, where there was one: a full disk must not end the job."""

    def add(self, event: str, **details: Any) -> None:
        """Append one event."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **details}) + "\n"
        try:
            with open_own(self._path, os.O_APPEND) as file:
                file.write(line)
        except OSError as error:
            self.error = self.error or error


@dataclass(frozen=True)
class Fate:
    """What is known of a job's state."""

    state: str
    """One of `launcher.jobdir.words.STATES`."""
    exit_code: int | None
    reason: str | None
    finished: float | None = None
    """Unix time of its last sign of life, seconds."""


@dataclass(frozen=True)
class JobRecord:
    """A job as its directory shows it."""

    id: str
    name: str
    dir: str
    state: str
    """One of `launcher.jobdir.words.STATES`."""
    exit_code: int | None = None
    reason: str | None = None
    """Why it is in this state, for people."""
    submitted: float | None = None
    """Unix time, seconds."""
    finished: float | None = None
    seconds: float | None = None
    ranks: int | None = None
    backend: str | None = None
    events: tuple[dict[str, Any], ...] = field(default=(), repr=False)


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events so far; lines that are not whole are left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            events.append(event)
    return events


def read_record(job: JobPaths) -> JobRecord:
    """The job's present state.  The first final event counts: no later one changes it."""
    events = read_events(job.events)
    submitted, started, finished = _firsts(events)
    if submitted and not finished and not alive(submitted.get("pid"), submitted.get("pid_started")):
        events = read_events(job.events)  # it may have ended in order between the two looks
        submitted, started, finished = _firsts(events)
    end = _state(job, submitted, started, finished)
    return JobRecord(
        id=job.id,
        name=job.id[:-21],
        dir=str(job.root),
        state=end.state,
        exit_code=end.exit_code,
        reason=end.reason,
        submitted=submitted.get("time"),
        finished=end.finished,
        seconds=finished.get("seconds", _seconds(submitted.get("time"), end.finished)),
        ranks=submitted.get("ranks"),
        backend=submitted.get("backend"),
        events=tuple(events),
    )


def _firsts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first event of each kind that decides the state; {} where there is none."""
    first: dict[str, dict[str, Any]] = {}
    for event in events:
        first.setdefault(event["event"], event)
    return [first.get(name, {}) for name in ("submitted", "started", "finished")]


def _state(job: JobPaths, submitted: dict[str, Any], started: dict[str, Any], finished: dict[str, Any]) -> Fate:
    if finished.get("state") in FINAL:
        return Fate(finished["state"], finished.get("exit_code"), finished.get("reason"), finished.get("time"))
    if not submitted:
        return _unknown("the job directory holds no record of a submission")
    if submitted.get("host") != socket.gethostname():
        return _unknown(f"it was started on {submitted.get('host')}, and only `hvdgrab-launch show` there can tell")
    if submitted.get("processes") not in (None, process_table()):
        return _unknown("it was started in another container of this host, and only `hvdgrab-launch show` there can tell")
    pid = submitted.get("pid")
    if not isinstance(pid, int):
        return _unknown("its record does not say which process ran it")
    if not alive(pid, submitted.get("pid_started")):
        from launcher.cli.directory import fate  # what judges a lost job is loaded where there is one

        return fate(job, submitted.get("ranks") or 0, pid, time.time())
    return Fate(RUNNING if started else STARTING, None, None)


def _unknown(reason: str) -> Fate:
    return Fate(UNKNOWN, None, reason)


def _seconds(submitted: float | None, finished: float | None) -> float | None:
    return None if submitted is None or finished is None else max(0.0, round(finished - submitted, 3))

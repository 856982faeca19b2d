"""What happened to a job: ``events.jsonl``, written as it happens and read back as the job's state."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.paths import JobPaths
from launcher.process.identity import alive, own_identity

__all__ = ["FINAL", "STATES", "EventLog", "JobRecord", "own_identity", "read_events", "read_record"]

STATES = ("queued", "starting", "running", "succeeded", "failed", "cancelled", "unknown")
FINAL = ("succeeded", "failed", "cancelled")


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
            with self._path.open("a", encoding="ascii") as file:
                file.write(line)
        except OSError as error:
            self.error = self.error or error


@dataclass(frozen=True)
class JobRecord:
    """A job as its directory shows it."""

    id: str
    name: str
    dir: str
    state: str
    """One of `STATES`."""
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
    first: dict[str, dict[str, Any]] = {}
    for event in events:
        first.setdefault(event["event"], event)
    submitted, started, finished = (first.get(name, {}) for name in ("submitted", "started", "finished"))
    state, reason = _state(submitted, started, finished)
    return JobRecord(
        id=job.id,
        name=job.id[:-21],
        dir=str(job.root),
        state=state,
        exit_code=finished.get("exit_code"),
        reason=reason,
        submitted=submitted.get("time"),
        finished=finished.get("time"),
        seconds=finished.get("seconds"),
        ranks=submitted.get("ranks"),
        backend=submitted.get("backend"),
        events=tuple(events),
    )


def _state(submitted: dict[str, Any], started: dict[str, Any], finished: dict[str, Any]) -> tuple[str, str | None]:
    if finished.get("state") in FINAL:
        return finished["state"], finished.get("reason")
    if not submitted:
        return "unknown", "the job directory holds no record of a submission"
    if submitted.get("host") != socket.gethostname():
        return "unknown", f"it was started on {submitted.get('host')}, which this host cannot ask"
    if not alive(submitted.get("pid"), submitted.get("pid_started")):
        return "unknown", "the command that ran it is gone, and has not noted an end"
    return ("running", None) if started else ("starting", None)

"""What happened to a job: ``events.jsonl``, appended to as it happens."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from launcher.host.files import open_own
from launcher.jobdir.paths import JobPaths


class EventLog:
    """Appends events; each is one JSON object a line with ``time`` (Unix, seconds) and ``event``."""

    def __init__(self, job: JobPaths) -> None:
        self._path = job.events
        self.error: OSError | None = None
        """The first failure to write, or None: a full disk must not end the job."""

    def add(self, event: str, **details: Any) -> None:
        """Append one event."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **details}) + "\n"
        try:
            with open_own(self._path, os.O_APPEND) as file:
                file.write(line)
        except OSError as error:
            self.error = self.error or error


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events so far, without lines that are incomplete."""
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

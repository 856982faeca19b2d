"""What a training tells the launcher that runs it: that it moves on, and that it is done.

Both are files that the launcher names in the environment; without a launcher nothing is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

PROGRESS, FINISHED = "HVDGRAB_PROGRESS", "HVDGRAB_FINISHED"
EVERY = 1.0
"""Seconds between two signs of progress, at least."""


class Progress:
    """Says about once a second that the training moves on: the launcher ends and restarts one that stands still."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        named = environment.get(PROGRESS)
        self._path = Path(named) if named else None
        self._next = 0.0

    def moved(self) -> None:
        """A unit is done.  A directory that cannot be written any more must not end a training."""
        if self._path is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        with contextlib.suppress(OSError):
            self._path.touch()


def mark_finished(environment: Mapping[str, str] = os.environ) -> None:
    """Say that the training is done: a job with ``checkpoint: {require_finished: true}`` succeeds only then.

    Call it on one rank after the last result is written.

    Raises:
        OSError: the mark cannot be written.
    """
    named = environment.get(FINISHED)
    if not named:
        return
    path = Path(named)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"time": time.time()}) + "\n", "ascii")
    temporary.replace(path)

"""The request to stop an attempt, and why: ``stop.json``, written before anybody is signalled.

The supervisor and the wrapper of every rank look at it, on whatever host they are, so a request also reaches hosts that a signal
does not reach.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from launcher.host.files import as_text, create_once, from_object, read_object
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.words import CANCELLED, STOP_CAUSES


@dataclass(frozen=True)
class Stop:
    """Why an attempt is to end; the first request counts."""

    cause: str
    """One of `launcher.jobdir.words.STOP_CAUSES`."""
    by: str = "unknown"
    """Who asked, for people."""
    reason: str = ""
    """In words; '' if the cause says enough."""
    bad_hosts: tuple[str, ...] = ()
    unexplained: bool = False
    """Whether a signal is all that is known: nobody has said why."""
    time: float = field(default_factory=lambda: round(time.time(), 3))
    """Unix time, seconds."""

    def write(self, attempt: AttemptPaths) -> Stop:
        """Make the request, unless there is one; returns the one that counts.

        If the file cannot be written (full disk, directory removed), the request holds for the caller alone.
        """
        try:
            if create_once(attempt.stop, as_text(asdict(self))):
                return self
        except OSError:
            return self
        return Stop.read(attempt) or self

    @classmethod
    def read(cls, attempt: AttemptPaths) -> Stop | None:
        """The request; None if there is none.  Unusable fields of a damaged file are ignored."""
        data = read_object(attempt.stop)
        if data is None:
            return None
        cause = data.get("cause")
        return from_object(cls, {**data, "cause": cause if cause in STOP_CAUSES else CANCELLED})

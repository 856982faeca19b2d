"""The request to stop an attempt, and why: ``stop.json``, written before anybody is signalled.

The supervisor and the wrapper of every rank look at it, on whatever host they are, so that a request arrives also where a signal
does not.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from launcher.host.files import as_text, create_once, read_object
from launcher.jobdir.paths import AttemptPaths

CANCELLED = "cancelled"
PREEMPTION = "preemption"
TIME_LIMIT = "time_limit"
HANG = "hang"
LOST_NODE = "lost_node"
FAILURE = "failure"
CAUSES = (CANCELLED, PREEMPTION, TIME_LIMIT, HANG, LOST_NODE, FAILURE)
GENTLE = (PREEMPTION, TIME_LIMIT)
"""Causes for which the training is given time to save its state."""


@dataclass(frozen=True)
class Stop:
    """Why an attempt is to end; the first request counts."""

    cause: str
    by: str
    """Who asked, for people."""
    reason: str = ""
    """In words; '' where the cause says enough."""
    bad_hosts: tuple[str, ...] = ()
    time: float = field(default_factory=lambda: round(time.time(), 3))
    """Unix time, seconds."""

    def write(self, attempt: AttemptPaths) -> Stop:
        """Make the request, unless there is one; returns the one that counts.

        Where the file cannot be written (full disk, directory removed) the request holds for the caller alone.
        """
        try:
            if create_once(attempt.stop, as_text(asdict(self))):
                return self
        except OSError:
            return self
        return Stop.read(attempt) or self

    @classmethod
    def read(cls, attempt: AttemptPaths) -> Stop | None:
        """The request; None where there is none.  What of a damaged one cannot be used is as if it had not been said."""
        data = read_object(attempt.stop)
        if data is None:
            return None
        known = {name: data[name] for name in ("by", "reason") if isinstance(data.get(name), str)}
        cause, moment, hosts = data.get("cause"), data.get("time"), data.get("bad_hosts")
        if isinstance(moment, int | float) and not isinstance(moment, bool):
            known["time"] = moment
        return cls(
            **{"by": "unknown", **known},
            cause=cause if cause in CAUSES else CANCELLED,
            bad_hosts=tuple(host for host in hosts if isinstance(host, str)) if isinstance(hosts, list) else (),
        )

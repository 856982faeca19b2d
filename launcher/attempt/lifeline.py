"""Whether an attempt's supervisor still lives, as a rank's wrapper can tell from its own host."""

from __future__ import annotations

import os
import time

from launcher.host.processes import alive, own_identity
from launcher.jobdir.paths import AttemptPaths

SILENCE = 120.0
"""Seconds without a touch of ``alive`` after which a supervisor on another host is taken for lost.  File systems that several
hosts share may show a change up to a minute late."""


def own_name() -> str:
    """The value of `launcher.jobdir.variables.SUPERVISOR` for this process."""
    return "{host} {pid} {pid_started}".format(**own_identity())


class Lifeline:
    """Watches one supervisor.

    Only a supervisor that was seen alive can be lost: nothing is concluded if processes of other containers are invisible, or if
    times of files do not change.
    """

    def __init__(self, attempt: AttemptPaths, name: str) -> None:
        self._file = attempt.alive
        host, pid, started = [*name.split(), "", "", ""][:3]
        self._identity = (int(pid), int(started)) if pid.isdigit() and started.isdigit() else (None, None)
        self._local = host == os.uname().nodename and alive(*self._identity)
        self._seen: int | None = None
        self._changed: float | None = None

    def lost(self) -> bool:
        """Whether the supervisor has gone."""
        if self._local:
            return not alive(*self._identity)
        try:
            stamp = os.stat(self._file).st_mtime_ns  # noqa: PTH116 - called every second by every rank
        except OSError:
            return False
        now = time.monotonic()
        if stamp != self._seen:
            if self._seen is not None:
                self._changed = now
            self._seen = stamp
        return self._changed is not None and now - self._changed > SILENCE

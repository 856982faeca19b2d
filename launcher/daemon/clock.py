"""Two clocks: one that people read, and one that only goes forward."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Time, for the daemon; tests have their own."""

    def wall(self) -> float:
        """Unix time in seconds: for what people read.  It may jump."""
        ...

    def steady(self) -> float:
        """Seconds from some point on, which go on while the host sleeps and never go back: for all waiting."""
        ...


class SystemClock:
    """The host's clocks."""

    def wall(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def steady(self) -> float:
        """Seconds since the host was started."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

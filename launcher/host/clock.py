"""For how long something has not changed, by the looker's own clock: other hosts' clocks are never compared."""

from __future__ import annotations

from collections.abc import Hashable


class Unchanged:
    """Remembers the stamps of many things, and since when each is the same."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def seconds(self, key: Hashable, stamp: object, now: float) -> float:
        """For how long the stamp of ``key`` has been this one; 0 at the first look, and whenever it is another.

        Args:
            key: which thing.
            stamp: what changes with every sign of life.
            now: seconds of a clock that never goes back.
        """
        known, since = self._seen.setdefault(key, (stamp, now))
        if known != stamp:
            self._seen[key] = (stamp, now)
            return 0.0
        return now - since

    def forget(self, key: Hashable) -> None:
        """Make the next look the first."""
        self._seen.pop(key, None)

"""How a rank waits: it looks, sleeps a little longer each time, and can be called off from another thread.

Open MPI makes no progress in the background, and its blocking calls burn a core while they wait.  So nothing here blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hvdgrab.errors import CommunicatorClosed

_FIRST_SLEEP, _LONG_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3, 4e-3
_SLOWER = 1.01
"""How much longer a long sleep becomes from look to look: what has taken a third of a second may take 4 ms more."""


class Waiting:
    """The waiting of one rank's communicators.

    Args:
        rank: for messages.
        check: called between two looks and before every call; raises where waiting has become senseless.
        cancelled: set by `cancel`; ranks that are threads of one process share theirs.
    """

    def __init__(self, rank: int, check: Callable[[], None] | None = None, cancelled: threading.Event | None = None) -> None:
        self._rank = rank
        self._check = check
        self._cancelled = cancelled or threading.Event()
        self.peers: list[int] = []
        """Ranks that are waited for."""

    def cancel(self) -> None:
        """End every wait, and refuse later ones."""
        self._cancelled.set()

    def begin(self) -> None:
        """Raise `CommunicatorClosed` where no call may be made any more."""
        if self._cancelled.is_set():
            raise CommunicatorClosed(f"rank {self._rank}: the communicator is closed")
        if self._check is not None:
            self._check()

    def until(self, done: Callable[[], bool], what: str, peers: Sequence[int] = ()) -> None:
        """Return once ``done()``; ``what`` and ``peers`` tell others what is waited for, and for whom."""
        pause = _FIRST_SLEEP
        self.peers = list(peers)
        while not done():
            if self._cancelled.wait(pause):
                raise CommunicatorClosed(f"rank {self._rank}: closed while a {what} waited for other ranks")
            if self._check is not None:
                self._check()
            pause = min(pause * (2 if pause < _LONG_SLEEP else _SLOWER), _LONGEST_SLEEP)
        self.peers = []

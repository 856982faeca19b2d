"""How a rank waits: it polls, with growing pauses, and another thread can cancel the wait.

Open MPI makes no progress in the background, and its blocking calls use a full core while they wait.  Hence nothing here blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hvdgrab.errors import CommunicatorClosed

_FIRST_SLEEP, _LONG_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3, 4e-3
_SLOWER = 1.01
"""Factor between two long pauses: after a third of a second, a wait may last 4 ms longer than necessary."""


class Waiting:
    """Waits for one rank's communicators.

    Args:
        rank: for messages.
        check: called before every call and between two polls; raises if the call cannot succeed any more.
        cancelled: set by `cancel`; shared by ranks that are threads of one process.
    """

    def __init__(self, rank: int, check: Callable[[], None] | None = None, cancelled: threading.Event | None = None) -> None:
        self._rank = rank
        self._check = check
        self._cancelled = cancelled or threading.Event()
        self.peers: list[int] = []
        """Ranks that the current call waits for."""

    def cancel(self) -> None:
        """End every wait, and make later ones raise."""
        self._cancelled.set()

    def begin(self) -> None:
        """Raise `CommunicatorClosed` if no further call is allowed."""
        if self._cancelled.is_set():
            raise CommunicatorClosed(f"rank {self._rank}: the communicator is closed")
        if self._check is not None:
            self._check()

    def until(self, done: Callable[[], bool], what: str, peers: Sequence[int] = ()) -> None:
        """Return once ``done()``; ``what`` names the call in an error, and ``peers`` are the ranks that it waits for."""
        pause = _FIRST_SLEEP
        self.peers = list(peers)
        while not done():
            if self._cancelled.wait(pause):
                raise CommunicatorClosed(f"rank {self._rank}: closed while {what} waited for other ranks")
            if self._check is not None:
                self._check()
            pause = min(pause * (2 if pause < _LONG_SLEEP else _SLOWER), _LONGEST_SLEEP)
        self.peers = []

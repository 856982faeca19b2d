"""Notices of ranks that leave an epoch early, for ranks that wait for their gradients instead of for a message.

A message holds many pairs.  Ranks whose next message is not full yet would hang in Horovod for a rank that waits for them at the
end of the epoch, and no headers would be compared.  So a rank that leaves early sends a notice, and the others compare it with
what they have seen themselves.  More than the rank that left is an error, since all ranks must end an epoch after the same unit;
less or as much is none, since they may be about to leave as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator
from hvdgrab.coordinator.wire import Kind, describe, disagreement
from hvdgrab.errors import ConsistencyError


class Progress(NamedTuple):
    """How far a rank has come."""

    begun: int
    """Epochs begun by the session, the same on all ranks: a restored epoch is another one than the first time."""
    epoch: int
    unit: int
    """Units seen in this epoch."""

    def row(self) -> NDArray[np.int64]:
        """(3,) int64, in the order of the fields."""
        return np.array(self, dtype=np.int64)


class EarlyExits:
    """One rank's progress, and what it knows of ranks that have left an epoch early.

    The training thread calls `begin`, `reach` and `end`; the communication thread calls the rest.  They share one reference to
    an immutable `Progress`: its epoch and unit always belong together, unlike the book's attributes while it enters an epoch.

    Args:
        rank: this rank.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._begun = 0
        self._own: Progress | None = None
        self._heard: list[tuple[int, Progress]] = []

    def begin(self, epoch: int, unit: int) -> None:
        """This rank begins an epoch, or goes on in a restored one after ``unit`` units."""
        self._begun += 1
        self._own = Progress(self._begun, epoch, unit)

    def reach(self, unit: int) -> None:
        """This rank has now seen ``unit`` units of its epoch."""
        if self._own is not None:
            self._own = Progress(self._own.begun, self._own.epoch, unit)

    def end(self) -> Progress | None:
        """This rank ends its epoch: from now on headers are compared, not notices.  Returns where it was, None if nowhere."""
        own, self._own = self._own, None
        return own

    def collect(self, communicator: Communicator) -> None:
        """Read the notices that have arrived, and forget those of earlier epochs; waits for nobody."""
        arrived = [(sender, Progress(*notice.tolist())) for sender, notice in communicator.notices()]
        self._heard = [(sender, left) for sender, left in self._heard + arrived if left.begun >= self._begun]

    def look(self, communicator: Communicator) -> None:
        """Compare what has arrived with this rank's progress; nothing is read between two epochs.

        Raises:
            ConsistencyError: other ranks left this epoch before units that this rank has seen.
        """
        own = self._own
        if own is None:
            return
        self.collect(communicator)
        behind = {sender: left.unit for sender, left in self._heard if left[:2] == own[:2] and left.unit < own.unit}
        if behind:
            rows = [(self._rank, Kind.PAIRS, own.unit), *((rank, Kind.END, unit) for rank, unit in behind.items())]
            raise ConsistencyError(disagreement(describe(rank, kind, own.epoch, unit) for rank, kind, unit in sorted(rows)))

    def weak_look(self) -> Callable[[Communicator], None]:
        """`look` for a thread that must not keep this object alive; it does nothing once the object is gone."""
        method = weakref.WeakMethod(self.look)

        def look(communicator: Communicator) -> None:
            alive = method()
            if alive is not None:
                alive(communicator)

        return look

"""What all coordinators are and hold: the signs of the epoch that is under way.

All methods run in the communication thread, in the same order on all ranks.  After `finish` every rank holds the signs of every
pair of every rank, so that every rank can make every order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.comm.communicator import Communicator
from hvdgrab.coordinator.devices import SideStream
from hvdgrab.coordinator.messages import Header, PairMessage, gather_headers
from hvdgrab.coordinator.pairing import CPU

Signs = NDArray[np.int8]
Balance = Mapping[str, Any]
"""`PairBalancer.state_dict`: the running sum and what belongs to it."""
NOTHING = np.zeros(0, dtype=np.int64)


class Coordinator(Protocol):
    """Decides the signs of an epoch."""

    announcement: str | None
    """Who balances, on the one rank that says so at the start, else None."""
    shares_balance: bool
    """Whether the balance that one rank has saved is that of all."""
    balancer: PairBalancer | None
    """Where this rank balances: the running sum h of Algorithm 4 (CD-GraB paper) and what belongs to it."""
    bytes_sent: int
    """Bytes that this rank has sent in this epoch."""

    def prepare(self, communicator: Communicator) -> None:
        """Called once, after the ranks have found out that they are one job, and before anything else."""

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Take in the differences of some pairs; ``message`` may be changed after the call."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """End the epoch: all ranks' signs (W, pairs) and drops (W,), the same on all ranks; then start the next one."""

    def rest(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """End an epoch that was not coordinated: nothing but the headers is compared; zeros."""

    def saved(self, communicator: Communicator | None, epoch: int) -> tuple[Signs, dict[str, Any] | None]:
        """The signs (W, pairs) of ``epoch`` that are known so far, and the balance, to be saved; no other rank takes part.

        Without a communicator, before the first unit or after the last, what is known without asking anybody.
        """

    def restore(self, communicator: Communicator, epoch: int, signs: Signs, balance: Balance | None) -> None:
        """Continue an epoch from saved values; without a saved balance it starts anew."""


class EpochState:
    """Signs, balancer and counts of the current epoch; 0 where a sign was not seen or is not known on this rank.

    Args:
        size: number of ranks W.
        pairs: pairs of an epoch, n // 2.
        root: the rank that compares the headers.
        balancer: where this rank balances.
        room: most numbers that a message carries beside its header.
    """

    announcement: str | None = None
    shares_balance = True

    def __init__(self, size: int, pairs: int, root: int = 0, balancer: PairBalancer | None = None, room: int = 1) -> None:
        self.signs: Signs = np.zeros((size, pairs), dtype=np.int8)
        self.balancer = balancer
        self.dropped = np.zeros(size, dtype=np.int64)
        self.bytes_sent = 0
        self.aside = SideStream(CPU)
        """Where the balancer works; set by coordinators that balance on a GPU.  All that touches it must run there."""
        self._root = root
        self._room = room

    def prepare(self, communicator: Communicator) -> None:  # noqa: ARG002
        """See `Coordinator.prepare`: compile what will balance, while the first batches are trained on."""
        if self.balancer is not None:
            with self.aside():
                self.balancer.warm_up()

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Nothing is balanced."""

    def rest(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.rest`."""
        self.meet(communicator, end, NOTHING)
        self.reset(end.epoch + 1)
        return np.zeros_like(self.signs), np.zeros_like(self.dropped)

    def saved(self, communicator: Communicator | None, epoch: int) -> tuple[Signs, dict[str, Any] | None]:  # noqa: ARG002
        """See `Coordinator.saved`."""
        with self.aside():
            return self.signs.copy(), None if self.balancer is None else self.balancer.state_dict()

    def restore(self, communicator: Communicator, epoch: int, signs: Signs, balance: Balance | None) -> None:  # noqa: ARG002
        """See `Coordinator.restore`."""
        self.take_over(epoch, signs, balance)

    def take_over(self, epoch: int, signs: Signs, balance: Balance | None) -> None:
        """Put saved values in place."""
        self.reset(epoch)
        self.bytes_sent = 0
        self.signs[...] = signs
        if self.balancer is not None and balance is not None:
            with self.aside():
                self.balancer.load_state_dict(dict(balance))

    def reset(self, epoch: int) -> None:
        """Start an epoch."""
        self.signs[...] = 0
        self.dropped[...] = 0
        if self.balancer is not None:
            with self.aside():
                self.balancer.begin_epoch(epoch)

    def meet(self, communicator: Communicator, header: Header, extra: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Compare the ranks' headers, and bring their ``extra`` (k,) to whoever needs it: (W, k) there, else None."""
        return gather_headers(communicator, header, extra, self._root, self._room)

    def note(self, signs: Signs, dropped: NDArray[np.bool_], ranks: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
        """Enter what a balancer decided: row i was pair ``pairs[i]`` of rank ``ranks[i]``."""
        self.signs[ranks, pairs] = signs
        np.add.at(self.dropped, ranks, dropped)


class SeededCoordinator(EpochState):
    """For orders that look at no gradients: only the ends of epochs are compared."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`; all signs are 0."""
        return self.rest(communicator, end)

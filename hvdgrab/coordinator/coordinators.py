"""Who decides the signs of an epoch's pairs: the base of all coordinators, and the one of ID-GraB, which sends no gradients.

All methods run in the communication thread, in the same order on all ranks.  After `finish` every rank holds the signs of every
pair of every rank, so that every rank can make every order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.comm.communicator import Communicator
from hvdgrab.coordinator.gradient import CPU, SideStream
from hvdgrab.coordinator.wire import Header, PairMessage, Signs, gather_headers, share_signs

Balance = Mapping[str, Any]
"""`PairBalancer.state_dict`: the running sum and what belongs to it."""
NOTHING = np.zeros(0, dtype=np.int64)


class Coordinator:
    """Decides the signs of an epoch.  This one is for orders that look at no gradients: it only compares the ends of epochs.

    Args:
        size: number of ranks W.
        pairs: pairs of an epoch, n // 2.
        root: the rank that compares the headers.
        balancer: on a rank that balances, the running sum h of Algorithm 4 (CD-GraB paper) and what belongs to it.
        room: most numbers that a message carries beside its header.
    """

    announcement: str | None = None
    """Who balances, for a line at the start; on one rank only."""
    shares_balance = True
    """Whether the balance that one rank has saved is that of all."""

    def __init__(self, size: int, pairs: int, root: int = 0, balancer: PairBalancer | None = None, room: int = 1) -> None:
        self.signs: Signs = np.zeros((size, pairs), dtype=np.int8)
        """(W, pairs) of the current epoch; 0 for a pair that was not seen, or whose sign this rank does not know."""
        self.balancer = balancer
        self.dropped = np.zeros(size, dtype=np.int64)
        """(W,): pairs of each rank that were not finite."""
        self.bytes_sent = 0
        self.aside = SideStream(CPU)
        """Where the balancer works; set by coordinators that balance on a GPU.  All that touches it must run there."""
        self._root = root
        self._room = room

    def prepare(self, communicator: Communicator) -> None:  # noqa: ARG002
        """Compile what will balance, while the first batches are trained on; called once, after the handshake."""
        if self.balancer is not None:
            with self.aside():
                self.balancer.warm_up()

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Take in the differences of some pairs; ``message`` may be changed after the call."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """End the epoch: all ranks' signs (W, pairs) and drops (W,), the same on all ranks; then start the next one."""
        return self.rest(communicator, end)

    def rest(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """End an epoch that was not coordinated: compare the headers only; zeros."""
        self.gather_headers(communicator, end)
        self.reset(end.epoch + 1)
        return np.zeros_like(self.signs), np.zeros_like(self.dropped)

    def take_bytes(self) -> int:
        """Bytes that this rank has sent since the last call."""
        sent, self.bytes_sent = self.bytes_sent, 0
        return sent

    def saved(self, communicator: Communicator | None, epoch: int) -> tuple[Signs, dict[str, Any] | None]:  # noqa: ARG002
        """The signs (W, pairs) of ``epoch`` that are known so far, and the balance, to be saved; no other rank takes part.

        Without a communicator (before the first unit, or after the last) nobody is asked.
        """
        with self.aside():
            return self.signs.copy(), None if self.balancer is None else self.balancer.state_dict()

    def restore(self, communicator: Communicator, epoch: int, signs: Signs, balance: Balance | None) -> None:  # noqa: ARG002
        """Continue an epoch from saved values; without a saved balance it starts anew."""
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

    def gather_headers(
        self, communicator: Communicator, header: Header, extra: NDArray[np.int64] = NOTHING
    ) -> NDArray[np.int64] | None:
        """Compare the ranks' headers, and bring their ``extra`` (k,) to the ranks that need it: (W, k) there, else None."""
        return gather_headers(communicator, header, extra, self._root, self._room)

    def note(self, signs: Signs, dropped: NDArray[np.bool_], ranks: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
        """Enter what a balancer decided: row i was pair ``pairs[i]`` of rank ``ranks[i]``."""
        self.signs[ranks, pairs] = signs
        np.add.at(self.dropped, ranks, dropped)


class IndependentCoordinator(Coordinator):
    """ID-GraB: each rank balances its own pairs against its own running sum (CD-GraB paper, section 4).

    Nothing travels, so nothing is compressed: the differences are balanced as they are.
    """

    shares_balance = False

    def __init__(self, rank: int, size: int, pairs: int, root: int, balancer: PairBalancer) -> None:
        super().__init__(size, pairs, root, balancer)
        self._rank = rank
        self.announcement = "every rank balances its own" if rank == root else None

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:  # noqa: ARG002 - nothing is sent
        """Balance this rank's pairs; no communication."""
        assert self.balancer is not None
        seen = np.flatnonzero(message.seen)
        rows = message.differences if len(seen) == len(message.seen) else message.differences[seen]
        if len(rows):
            self.note(*self.balancer.feed(rows), np.full(len(seen), self._rank), message.header.pair + seen)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: every rank's row of signs is gathered, then all are sent to all."""
        rank, root = communicator.rank, self._root
        drops = self.gather_headers(communicator, end, self.dropped[rank : rank + 1])
        everyone = np.empty_like(self.signs) if rank == root else None
        communicator.gather(self.signs[rank], everyone, root)
        result = share_signs(communicator, everyone, None if drops is None else drops[:, 0], self.signs.shape, root)
        self.bytes_sent += self.signs.shape[1] if rank != root else 0
        self.reset(end.epoch + 1)
        return result

"""Who balances the pairs: one designated rank for all (CD-GraB), each rank for itself (ID-GraB), or nobody (seeded orders).

All methods run in the communication thread, in the same order on all ranks.  After `finish` every rank holds the signs of every
pair of every rank, so that every rank can make every order.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance import balance_pairs
from hvdgrab.comm.communicator import Communicator
from hvdgrab.coordinator.messages import Header, PairMessage, gather_headers
from hvdgrab.coordinator.signs import share_signs

Signs = NDArray[np.int8]
_NOTHING = np.zeros(0, dtype=np.int64)


class Coordinator(Protocol):
    """Decides the signs of an epoch."""

    signs: Signs
    """(W, pairs) int8: what is known so far; 0 where a pair was not seen or is not known on this rank."""
    running_sum: NDArray[np.float32]
    """(d,) float32: h of Algorithm 4 (CD-GraB paper), where this rank balances; else empty."""
    dropped: NDArray[np.int64]
    """(W,) int64: pairs dropped for non-finite differences, as known on this rank."""
    bytes_sent: int
    """Bytes that this rank has sent in this epoch."""

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Take in the differences of some pairs; ``message`` may be changed after the call."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """End the epoch: all ranks' signs (W, pairs) and drops (W,), the same on all ranks; then start the next one."""

    def restore(self, signs: Signs, running_sum: NDArray[np.float32]) -> None:
        """Continue an epoch from saved values."""


class _State:
    """What all coordinators hold: signs, running sum and counts of the current epoch."""

    def __init__(self, size: int, pairs: int, dimension: int, root: int, room: int = 1) -> None:
        self.signs: Signs = np.zeros((size, pairs), dtype=np.int8)
        self.running_sum = np.zeros(dimension, dtype=np.float32)
        self.dropped = np.zeros(size, dtype=np.int64)
        self.bytes_sent = 0
        self._root = root
        self._room = room

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Nothing is balanced."""

    def restore(self, signs: Signs, running_sum: NDArray[np.float32]) -> None:
        """See `Coordinator.restore`; a state without a running sum starts it at zero."""
        self._reset()
        self.bytes_sent = 0
        self.signs[...] = signs
        if running_sum.size == self.running_sum.size:
            self.running_sum[...] = running_sum

    def _reset(self) -> None:
        self.signs[...] = 0
        self.running_sum[...] = 0
        self.dropped[...] = 0

    def _balance(self, differences: NDArray[np.float32], seen: NDArray[np.bool_], pair: int, ranks: NDArray[np.int64]) -> None:
        """Balance one pair of each of ``ranks``, in their order: differences (len(ranks), d), seen (len(ranks),)."""
        taking_part = ranks[seen]
        if taking_part.size:
            # A mask would copy every difference, on the rank that all others wait for; it is needed only where one is missing.
            rows = differences if seen.all() else differences[seen]
            signs, dropped = balance_pairs(rows, self.running_sum)
            self.signs[taking_part, pair] = signs
            self.dropped[taking_part] += dropped


class SeededCoordinator(_State):
    """For orders that look at no gradients: only the ends of epochs are compared."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`; all signs are 0."""
        gather_headers(communicator, end, _NOTHING, self._root, self._room)
        return self.signs, self.dropped


class IndependentCoordinator(_State):
    """ID-GraB: each rank balances its own pairs against its own running sum (CD-GraB paper, section 4)."""

    def __init__(self, rank: int, size: int, pairs: int, dimension: int, root: int) -> None:
        super().__init__(size, pairs, dimension, root)
        self._own = np.array([rank], dtype=np.int64)

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:  # noqa: ARG002 - nothing is sent
        """Balance this rank's pairs; no communication."""
        for k in range(message.header.pairs):
            self._balance(
                message.differences[k : k + 1], message.seen[k : k + 1].astype(bool), message.header.pair + k, self._own
            )

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: every rank's row of signs is gathered, then all are sent to all."""
        rank, root = communicator.rank, self._root
        drops = gather_headers(communicator, end, self.dropped[rank : rank + 1], root, self._room)
        everyone = np.empty_like(self.signs) if rank == root else None
        communicator.gather(self.signs[rank], everyone, root)
        result = share_signs(communicator, everyone, None if drops is None else drops[:, 0], self.signs.shape, root)
        self.bytes_sent += self.signs.shape[1] if rank != root else 0
        self._reset()
        return result


class DesignatedCoordinator(_State):
    """CD-GraB: one rank balances the pairs of all ranks, pair after pair and inside a pair rank after rank.

    Source: Cooper et al., NeurIPS 2023, arXiv 2302.00845, Algorithm 4 (server side).

    Args:
        rank: this rank; only the designated one holds a running sum and a receive buffer (W, pairs a message, d) float32.
        size: number of ranks W.
        pairs: pairs of an epoch, n // 2.
        dimension: d.
        pairs_per_message: most pairs in a message.
        root: the designated rank.
    """

    def __init__(self, rank: int, size: int, pairs: int, dimension: int, pairs_per_message: int, root: int) -> None:
        super().__init__(size, pairs, dimension if rank == root else 0, root, room=pairs_per_message)
        self._ranks = np.arange(size, dtype=np.int64)
        self._received = np.empty((size, pairs_per_message, dimension), dtype=np.float32) if rank == root else None

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring the differences to the designated rank and balance them there."""
        count, first = message.header.pairs, message.header.pair
        seen = gather_headers(communicator, message.header, message.seen.astype(np.int64), self._root, self._room)
        received = None if self._received is None else self._received[:, :count]
        communicator.gather(message.differences, received, self._root)
        if communicator.rank != self._root:
            self.bytes_sent += message.differences.nbytes
        if received is not None and seen is not None:
            for k in range(count):
                self._balance(received[:, k], seen[:, k].astype(bool), first + k, self._ranks)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: only the sign bits travel back."""
        gather_headers(communicator, end, _NOTHING, self._root, self._room)
        designated = communicator.rank == self._root
        result = share_signs(
            communicator, self.signs if designated else None, self.dropped if designated else None, self.signs.shape, self._root
        )
        self.bytes_sent += (communicator.size - 1) * -(-self.signs.size // 8) if designated else 0
        self._reset()
        return result

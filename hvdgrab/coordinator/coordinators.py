"""Who balances the pairs: one designated rank for all (CD-GraB), each rank for itself (ID-GraB), or nobody (seeded orders).

All methods run in the communication thread, in the same order on all ranks.  After `finish` every rank holds the signs of every
pair of every rank, so that every rank can make every order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.comm.communicator import Communicator
from hvdgrab.compression import Compressor, Payload
from hvdgrab.coordinator.messages import Header, PairMessage, gather_headers
from hvdgrab.coordinator.signs import share_signs
from hvdgrab.errors import PayloadError

Signs = NDArray[np.int8]
_NOTHING = np.zeros(0, dtype=np.int64)
_ROWS_AT_ONCE = 64
"""Vectors that are expanded before they are balanced, where a message holds more."""


class Coordinator(Protocol):
    """Decides the signs of an epoch."""

    signs: Signs
    """(W, pairs) int8: what is known so far; 0 where a pair was not seen or is not known on this rank."""
    balancer: PairBalancer | None
    """Where this rank balances: the running sum h of Algorithm 4 (CD-GraB paper) and what belongs to it."""
    dropped: NDArray[np.int64]
    """(W,) int64: pairs dropped for non-finite differences, as known on this rank."""
    bytes_sent: int
    """Bytes that this rank has sent in this epoch."""

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Take in the differences of some pairs; ``message`` may be changed after the call."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """End the epoch: all ranks' signs (W, pairs) and drops (W,), the same on all ranks; then start the next one."""

    def restore(self, epoch: int, signs: Signs, balance: Mapping[str, Any] | None) -> None:
        """Continue an epoch from saved values; without a saved balance it starts anew."""


class _State:
    """What all coordinators hold: signs, balancer and counts of the current epoch."""

    def __init__(self, size: int, pairs: int, root: int, balancer: PairBalancer | None = None, room: int = 1) -> None:
        self.signs: Signs = np.zeros((size, pairs), dtype=np.int8)
        self.balancer = balancer
        self.dropped = np.zeros(size, dtype=np.int64)
        self.bytes_sent = 0
        self._root = root
        self._room = room

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Nothing is balanced."""

    def restore(self, epoch: int, signs: Signs, balance: Mapping[str, Any] | None) -> None:
        """See `Coordinator.restore`."""
        self._reset(epoch)
        self.bytes_sent = 0
        self.signs[...] = signs
        if self.balancer is not None and balance is not None:
            self.balancer.load_state_dict(dict(balance))

    def _reset(self, epoch: int) -> None:
        self.signs[...] = 0
        self.dropped[...] = 0
        if self.balancer is not None:
            self.balancer.begin_epoch(epoch)

    def _balance(self, rows: NDArray[np.float32], ranks: NDArray[np.int64], pairs: NDArray[np.int64]) -> None:
        """Balance differences (m, width) in the order given; row i is pair ``pairs[i]`` of rank ``ranks[i]``."""
        assert self.balancer is not None
        if len(rows):
            signs, dropped = self.balancer.feed(rows)
            self.signs[ranks, pairs] = signs
            np.add.at(self.dropped, ranks, dropped)


class SeededCoordinator(_State):
    """For orders that look at no gradients: only the ends of epochs are compared."""

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`; all signs are 0."""
        gather_headers(communicator, end, _NOTHING, self._root, self._room)
        return self.signs, self.dropped


class IndependentCoordinator(_State):
    """ID-GraB: each rank balances its own pairs against its own running sum (CD-GraB paper, section 4).

    Nothing travels, so nothing is compressed: the differences are balanced as they are.
    """

    def __init__(self, rank: int, size: int, pairs: int, root: int, balancer: PairBalancer) -> None:
        super().__init__(size, pairs, root, balancer)
        self._rank = rank

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:  # noqa: ARG002 - nothing is sent
        """Balance this rank's pairs; no communication."""
        seen = np.flatnonzero(message.seen)
        rows = message.differences if len(seen) == len(message.seen) else message.differences[seen]
        self._balance(rows, np.full(len(seen), self._rank), message.header.pair + seen)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: every rank's row of signs is gathered, then all are sent to all."""
        rank, root = communicator.rank, self._root
        drops = gather_headers(communicator, end, self.dropped[rank : rank + 1], root, self._room)
        everyone = np.empty_like(self.signs) if rank == root else None
        communicator.gather(self.signs[rank], everyone, root)
        result = share_signs(communicator, everyone, None if drops is None else drops[:, 0], self.signs.shape, root)
        self.bytes_sent += self.signs.shape[1] if rank != root else 0
        self._reset(end.epoch + 1)
        return result


class DesignatedCoordinator(_State):
    """CD-GraB: one rank balances the pairs of all ranks, pair after pair and inside a pair rank after rank.

    Source: Cooper et al., NeurIPS 2023, arXiv 2302.00845, Algorithm 4 (server side).

    Args:
        size: number of ranks W.
        pairs: pairs of an epoch, n // 2.
        dimension: d.
        compressor: how a difference travels.
        pairs_per_message: most pairs in a message.
        root: the designated rank.
        balancer: on the designated rank; it alone has room for everybody's payloads.
    """

    def __init__(
        self,
        size: int,
        pairs: int,
        dimension: int,
        compressor: Compressor,
        pairs_per_message: int,
        root: int,
        balancer: PairBalancer | None,
    ) -> None:
        super().__init__(size, pairs, root, balancer, room=pairs_per_message)
        self._compressor = compressor
        wire = compressor.wire_bytes(dimension)
        self._outgoing = np.empty((pairs_per_message, wire), dtype=np.uint8)
        self._received = np.empty(0 if balancer is None else size * pairs_per_message * wire, dtype=np.uint8)
        self._step = max(1, min(pairs_per_message, _ROWS_AT_ONCE // size))
        width = 0 if balancer is None else compressor.width(dimension)
        self._rows = torch.zeros(self._step * size, width, dtype=torch.float32)

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring the differences to the designated rank and balance them there."""
        count = message.header.pairs
        seen = gather_headers(communicator, message.header, message.seen.astype(np.int64), self._root, self._room)
        payloads = self._outgoing[:count]
        for difference, out in zip(torch.from_numpy(message.differences), payloads, strict=True):
            self._compressor.encode(difference, out)
        if seen is None:
            communicator.gather(payloads, None, self._root)
            self.bytes_sent += payloads.nbytes
            return
        received = self._received[: communicator.size * payloads.nbytes].reshape(communicator.size, *payloads.shape)
        communicator.gather(payloads, received, self._root)
        for first in range(0, count, self._step):
            last = min(count, first + self._step)
            self._balance_payloads(received[:, first:last], seen[:, first:last].astype(bool), message.header, first)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: only the sign bits travel back."""
        gather_headers(communicator, end, _NOTHING, self._root, self._room)
        designated = communicator.rank == self._root
        result = share_signs(
            communicator, self.signs if designated else None, self.dropped if designated else None, self.signs.shape, self._root
        )
        self.bytes_sent += (communicator.size - 1) * -(-self.signs.size // 8) if designated else 0
        self._reset(end.epoch + 1)
        return result

    def _balance_payloads(self, payloads: NDArray[np.uint8], seen: NDArray[np.bool_], header: Header, first: int) -> None:
        """Balance payloads (W, k, bytes) of the pairs from ``header.pair + first``, of which seen (W, k) take part."""
        size, count = seen.shape
        rows = self._rows[: count * size]  # pair outermost, rank innermost
        for pair in range(count):
            try:
                self._compressor.expand_many(payloads[:, pair], rows[pair * size : (pair + 1) * size])
            except PayloadError:
                self._name_the_sender(payloads[:, pair], f"pair {header.pair + first + pair} of epoch {header.epoch}")
                raise
        pairs, ranks = np.nonzero(seen.T)
        # A mask would copy every difference, on the rank that all others wait for; it is needed only where one is missing.
        taken = rows.numpy() if len(pairs) == len(rows) else rows.numpy()[pairs * size + ranks]
        self._balance(taken, ranks, header.pair + first + pairs)

    def _name_the_sender(self, payloads: NDArray[np.uint8], what: str) -> None:
        for rank, payload in enumerate(payloads):
            try:
                self._compressor.expand(Payload(payload))
            except PayloadError as error:
                raise PayloadError(f"what rank {rank} sent for {what} cannot be used: {error}") from None

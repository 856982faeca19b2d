"""Balancing payloads: what comes over the wire from all ranks, pair after pair and inside a pair rank after rank."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.compression import Compressor, Payload
from hvdgrab.coordinator.devices import SideStream
from hvdgrab.coordinator.messages import Header, PairMessage
from hvdgrab.coordinator.staging import host_memory
from hvdgrab.coordinator.state import EpochState
from hvdgrab.errors import PayloadError

_ROWS_AT_ONCE = 64
"""Vectors that are expanded before they are balanced, where a message holds more."""
Bytes = NDArray[np.uint8]


class Bench:
    """Where expanded rows are balanced: on the host, or on a GPU that trains at the same time.

    On a GPU rows are copied from pinned memory and balanced on a stream of their own: who waits is the communication thread, for
    that stream; the training's stream waits for nothing.

    Args:
        rows: most rows at once.
        width: values of a row.
        balancer: whose running sum is moved to the device.
        device: where the model trains.
        aside: the stream.
    """

    def __init__(self, rows: int, width: int, balancer: PairBalancer, device: torch.device, aside: SideStream) -> None:
        self._balancer, self._aside = balancer, aside
        self.rows = host_memory(rows, width, device=device)
        """(rows, width) float32 on the host, for the caller to fill."""
        self._away: torch.Tensor | None = None
        if device.type != "cpu":
            with aside():
                self._away = torch.empty(rows, width, dtype=torch.float32, device=device)
                balancer.move(device)

    def feed(self, rows: torch.Tensor) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """Balance some of the host rows, (m, width); signs and drops (m,).  They may be changed when this returns."""
        if self._away is None:
            return self._balancer.feed(rows.numpy())
        with self._aside():
            away = self._away[: len(rows)]
            away.copy_(rows, non_blocking=True)
            return self._balancer.feed(away)


class PayloadState(EpochState):
    """An epoch's state where differences travel as payloads.

    Args:
        size: number of ranks W.
        pairs: pairs of an epoch, n // 2.
        dimension: d.
        compressor: how a difference travels.
        pairs_per_message: most pairs in a message.
        root: the rank that compares headers.
        balancer: where this process balances: it alone has room for everybody's payloads.
        device: where it balances.
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
        device: torch.device,
    ) -> None:
        super().__init__(size, pairs, root, balancer, room=pairs_per_message)
        self._compressor = compressor
        self._wire = compressor.wire_bytes(dimension)
        self._outgoing = np.empty((pairs_per_message, self._wire), dtype=np.uint8)
        self._received = np.empty(0 if balancer is None else size * pairs_per_message * self._wire, dtype=np.uint8)
        self._step = max(1, min(pairs_per_message, _ROWS_AT_ONCE // size))
        self._bench: Bench | None = None
        if balancer is not None:
            self.aside = SideStream(device)
            self._bench = Bench(self._step * size, compressor.width(dimension), balancer, device, self.aside)

    def encode(self, message: PairMessage) -> Bytes:
        """This rank's payloads (k, wire) of a message; the memory is used again for the next."""
        payloads = self._outgoing[: message.header.pairs]
        for difference, out in zip(torch.from_numpy(message.differences), payloads, strict=True):
            self._compressor.encode(difference, out)
        return payloads

    def room_for(self, count: int) -> Bytes:
        """(W, count, wire): where all ranks' payloads of a message with ``count`` pairs may be put."""
        size = len(self.signs)
        return self._received[: size * count * self._wire].reshape(size, count, self._wire)

    def balance(self, payloads: Bytes, seen: NDArray[np.bool_], header: Header) -> None:
        """Balance a message: payloads (W, k, wire), of which seen (W, k) take part.

        Raises:
            PayloadError: a payload is damaged; names its rank and pair.
        """
        for first in range(0, seen.shape[1], self._step):
            part = slice(first, first + self._step)
            self._balance_some(payloads[:, part], seen[:, part], header, first)

    def _balance_some(self, payloads: Bytes, seen: NDArray[np.bool_], header: Header, first: int) -> None:
        assert self._bench is not None
        size, count = seen.shape
        rows = self._bench.rows[: count * size]  # pair outermost, rank innermost
        for pair in range(count):
            try:
                self._compressor.expand_many(payloads[:, pair], rows[pair * size : (pair + 1) * size])
            except PayloadError:
                self._name_the_sender(payloads[:, pair], f"pair {header.pair + first + pair} of epoch {header.epoch}")
                raise
        pairs, ranks = np.nonzero(seen.T)
        if not len(pairs):
            return
        # A mask would copy every difference, on the rank that all others wait for; it is needed only where one is missing.
        taken = rows if len(pairs) == len(rows) else rows[torch.from_numpy(pairs * size + ranks)]
        signs, dropped = self._bench.feed(taken)
        self.note(signs, dropped, ranks, header.pair + first + pairs)

    def _name_the_sender(self, payloads: Bytes, what: str) -> None:
        for rank, payload in enumerate(payloads):
            try:
                self._compressor.expand(Payload(payload))
            except PayloadError as error:
                raise PayloadError(f"what rank {rank} sent for {what} cannot be used: {error}") from None

"""CD-GraB: differences travel as payloads, and one rank or every rank balances those of all.

Payloads are balanced pair after pair, and inside a pair rank after rank.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.comm.communicator import Communicator
from hvdgrab.compression import Compressor, Payload, build_compressor
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.coordinators import NOTHING, Coordinator
from hvdgrab.coordinator.gradient import CPU, SideStream, host_memory
from hvdgrab.coordinator.wire import Header, PairMessage, Signs, share_headers, share_signs
from hvdgrab.errors import PayloadError

MESSAGE_BYTES = 2**16
"""If `pairs_per_message` is not set, as many pairs travel together as fit into this, at most `MOST_PAIRS`."""
MOST_PAIRS = 16
_ROWS_AT_ONCE = 64
"""Vectors that are expanded before they are balanced, if a message holds more."""
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Format:
    """How the difference of a pair travels."""

    compressor: Compressor
    dimension: int
    """d: values of a gradient."""
    room: int
    """Most pairs in a message."""

    @classmethod
    def of(cls, config: GraBConfig, dimension: int, units: int) -> Format:
        """The format for gradients of ``dimension`` values and ``units`` units a rank.

        Raises:
            ConfigError: settings that no compressor takes.
        """
        options = config.compression.options()
        if config.compression.kind == "sketch":  # its signs come from the run's seed, which is the same on all ranks
            options["seed"] = config.seed
        compressor = build_compressor(config.compression.kind, **options)
        fitting = max(1, min(MESSAGE_BYTES // compressor.wire_bytes(dimension), MOST_PAIRS, units // 2))
        return cls(compressor, dimension, config.pairs_per_message or fitting)

    @property
    def width(self) -> int:
        """Values of the vector that is balanced: d, or the sketch's width."""
        return self.compressor.width(self.dimension)

    @property
    def wire(self) -> int:
        """Bytes of a payload."""
        return self.compressor.wire_bytes(self.dimension)

    def balancer(self, config: GraBConfig, expected: int, device: torch.device = CPU) -> PairBalancer:
        """What balances ``expected`` pairs an epoch."""
        return PairBalancer(self.width, config.balance, seed=config.seed, expected=expected, device=device.type)

    def describe(self, balancer: PairBalancer | None, wire: int | None = None) -> str:
        """What is balanced, what a pair costs on the wire (bytes), and how; for a line at the start."""
        text = (
            f"{self.dimension:,} gradient values as {self.compressor.info.kind} ({self.width:,} values, "
            f"{self.wire if wire is None else wire:,} bytes a pair and rank, {self.room} pairs a message)"
        )
        return text if balancer is None else f"{text}; {balancer.choice}"


class BalancingDevice:
    """Where expanded rows are balanced: on the host, or on a GPU that trains at the same time.

    On a GPU, rows are copied from pinned memory and balanced on a stream of their own.  Only the communication thread waits for
    that stream.

    Args:
        rows: most rows at once.
        width: values of a row.
        balancer: its running sum is moved to the device.
        device: the model's.
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
        """Balance host rows (m, width): signs and drops (m,).  The rows may be changed after the call."""
        if self._away is None:
            return self._balancer.feed(rows.numpy())
        with self._aside():
            away = self._away[: len(rows)]
            away.copy_(rows, non_blocking=True)
            return self._balancer.feed(away)


class PayloadState(Coordinator):
    """What coordinators hold to which differences travel as payloads, and what a server holds.

    Args:
        size: number of ranks W.
        pairs: pairs of an epoch, n // 2.
        format: how a difference travels.
        root: the rank that compares headers.
        balancer: given if this process balances; it then has room for the payloads of all ranks.
        device: where it balances.
    """

    def __init__(
        self,
        size: int,
        pairs: int,
        format: Format,
        root: int,
        balancer: PairBalancer | None,
        device: torch.device,
    ) -> None:
        super().__init__(size, pairs, root, balancer, room=format.room)
        self._compressor, self._wire = format.compressor, format.wire
        self._outgoing = np.empty((format.room, self._wire), dtype=np.uint8)
        self._received = np.empty(0 if balancer is None else size * format.room * self._wire, dtype=np.uint8)
        self._step = max(1, min(format.room, _ROWS_AT_ONCE // size))
        self._device: BalancingDevice | None = None
        if balancer is not None:
            self.aside = SideStream(device)
            self._device = BalancingDevice(self._step * size, format.width, balancer, device, self.aside)

    def encode(self, message: PairMessage) -> Bytes:
        """This rank's payloads (k, wire) of a message; the next message uses their memory again."""
        payloads = self._outgoing[: message.header.pairs]
        for difference, out in zip(torch.from_numpy(message.differences), payloads, strict=True):
            self._compressor.encode(difference, out)
        return payloads

    def room_for(self, count: int) -> Bytes:
        """(W, count, wire): memory for all ranks' payloads of a message with ``count`` pairs."""
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
        assert self._device is not None
        size, count = seen.shape
        rows = self._device.rows[: count * size]  # pair outermost, rank innermost
        for pair in range(count):
            try:
                self._compressor.expand_many(payloads[:, pair], rows[pair * size : (pair + 1) * size])
            except PayloadError:
                self._name_the_sender(payloads[:, pair], f"pair {header.pair + first + pair} of epoch {header.epoch}")
                raise
        pairs, ranks = np.nonzero(seen.T)
        if not len(pairs):
            return
        # A mask would copy every difference, on the rank that all others wait for; it is needed only if one is missing.
        taken = rows if len(pairs) == len(rows) else rows[torch.from_numpy(pairs * size + ranks)]
        signs, dropped = self._device.feed(taken)
        self.note(signs, dropped, ranks, header.pair + first + pairs)

    def _name_the_sender(self, payloads: Bytes, what: str) -> None:
        for rank, payload in enumerate(payloads):
            try:
                self._compressor.expand(Payload(payload))
            except PayloadError as error:
                raise PayloadError(f"what rank {rank} sent for {what} cannot be used: {error}") from None


class DesignatedCoordinator(PayloadState):
    """CD-GraB: one rank balances the pairs of all ranks.

    Source: Cooper et al., NeurIPS 2023, arXiv 2302.00845, Algorithm 4 (server side).
    """

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.announcement = None if self.balancer is None else f"rank {self._root} balances"

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring the differences to the designated rank and balance them there."""
        seen = self.gather_headers(communicator, message.header, message.seen.astype(np.int64))
        payloads = self.encode(message)
        if seen is None:
            communicator.gather(payloads, None, self._root)
            self.bytes_sent += payloads.nbytes
            return
        received = self.room_for(message.header.pairs)
        communicator.gather(payloads, received, self._root)
        self.balance(received, seen.astype(bool), message.header)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: only the sign bits travel back."""
        self.gather_headers(communicator, end)
        designated = communicator.rank == self._root
        result = share_signs(
            communicator, self.signs if designated else None, self.dropped if designated else None, self.signs.shape, self._root
        )
        self.bytes_sent += (communicator.size - 1) * -(-self.signs.size // 8) if designated else 0
        self.reset(end.epoch + 1)
        return result


class ReplicatedCoordinator(PayloadState):
    """Every rank balances the pairs of all ranks, from the same payloads.

    The orders follow rank 0's signs.  Ranks that decide otherwise, because their processor or libraries round differently, are
    named; their running sums are their own until the epoch ends.
    """

    def __init__(self, *settings: Any, rank: int, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.announcement = "every rank balances" if rank == self._root else None

    def gather_headers(self, communicator: Communicator, header: Header, extra: NDArray[np.int64] = NOTHING) -> NDArray[np.int64]:
        """See `Coordinator.gather_headers`: every rank needs the extras."""
        return share_headers(communicator, header, extra, self._room)

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring the differences of all ranks to all ranks and balance them everywhere."""
        seen = self.gather_headers(communicator, message.header, message.seen.astype(np.int64))
        payloads, received = self.encode(message), self.room_for(message.header.pairs)
        communicator.allgather(payloads, received)
        self.bytes_sent += (communicator.size - 1) * payloads.nbytes
        self.balance(received, seen.astype(bool), message.header)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: rank 0's signs, after all have been compared with them."""
        self.gather_headers(communicator, end)
        first = communicator.rank == self._root
        everyone = np.empty((communicator.size, *self.signs.shape), dtype=np.int8) if first else None
        communicator.gather(self.signs, everyone, self._root)
        self.bytes_sent += 0 if first else self.signs.nbytes
        if everyone is not None:
            self._tell_differences(everyone, end.epoch)
        result = share_signs(
            communicator, self.signs if first else None, self.dropped if first else None, self.signs.shape, self._root
        )
        self.reset(end.epoch + 1)
        return result

    def _tell_differences(self, everyone: Signs, epoch: int) -> None:
        for rank, count in enumerate((everyone != everyone[self._root]).sum(axis=(1, 2)).tolist()):
            if count:
                print(
                    f"hvdgrab: rank {rank} decided {count} of the {self.signs.size} signs of epoch {epoch} otherwise than rank "
                    f"{self._root}, whose signs count: its processor or libraries round differently",
                    file=sys.stderr,
                )

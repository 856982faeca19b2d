"""Who balances the pairs: one designated rank for all (CD-GraB), every rank alike for all, or each rank for itself (ID-GraB)."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.comm.communicator import Communicator
from hvdgrab.coordinator.messages import Header, PairMessage, share_headers
from hvdgrab.coordinator.payloads import PayloadState
from hvdgrab.coordinator.signs import share_signs
from hvdgrab.coordinator.state import NOTHING, EpochState, Signs


class IndependentCoordinator(EpochState):
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
        drops = self.meet(communicator, end, self.dropped[rank : rank + 1])
        everyone = np.empty_like(self.signs) if rank == root else None
        communicator.gather(self.signs[rank], everyone, root)
        result = share_signs(communicator, everyone, None if drops is None else drops[:, 0], self.signs.shape, root)
        self.bytes_sent += self.signs.shape[1] if rank != root else 0
        self.reset(end.epoch + 1)
        return result


class DesignatedCoordinator(PayloadState):
    """CD-GraB: one rank balances the pairs of all ranks.

    Source: Cooper et al., NeurIPS 2023, arXiv 2302.00845, Algorithm 4 (server side).
    """

    def __init__(self, *settings: Any, **named: Any) -> None:
        super().__init__(*settings, **named)
        self.announcement = None if self.balancer is None else f"rank {self._root} balances"

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring the differences to the designated rank and balance them there."""
        seen = self.meet(communicator, message.header, message.seen.astype(np.int64))
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
        self.meet(communicator, end, NOTHING)
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

    def meet(self, communicator: Communicator, header: Header, extra: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `EpochState.meet`: everybody needs to know."""
        return share_headers(communicator, header, extra, self._room)

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring the differences of all ranks to all ranks and balance them everywhere."""
        seen = self.meet(communicator, message.header, message.seen.astype(np.int64))
        payloads, received = self.encode(message), self.room_for(message.header.pairs)
        communicator.allgather(payloads, received)
        self.bytes_sent += (communicator.size - 1) * payloads.nbytes
        self.balance(received, seen.astype(bool), message.header)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: rank 0's signs, after all have been compared with them."""
        self.meet(communicator, end, NOTHING)
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

"""Balancing exactly and together: every rank holds a part of the coordinates of every difference, and of the running sum.

Each rank sends every other its part of d/W values of a difference, (W − 1)/W·d in all: no exact rule can do with less.  A rank
keeps d/W values, too.  The signs of a block of rows follow from its Gram matrix D·Dᵀ and its products D·h with the running sum
(`hvdgrab.balance.backends.gram`), both of which are sums over the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.backends.gram import recurrence
from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.balance.sign_rules import decide, threshold
from hvdgrab.comm.communicator import Communicator
from hvdgrab.config import BalanceConfig, GraBConfig
from hvdgrab.coordinator.coordinators import NOTHING, Coordinator
from hvdgrab.coordinator.gradient import SideStream, host_memory
from hvdgrab.coordinator.payloads import Format
from hvdgrab.coordinator.wire import Header, PairMessage, Signs, share_headers
from hvdgrab.errors import UsageError

Sum = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Adds up the ranks' arrays; the result is the same on all ranks, bit for bit."""
_ROWS_AT_ONCE = 64
"""Rows of a block, unless there are more ranks."""


class ShardBalancer(PairBalancer):
    """A `PairBalancer` for a part of the coordinates of each row.

    Args:
        width: values of the part.
        config: how to balance; its backend is ignored.
        seed, expected: as for `PairBalancer`.
        device: of the parts.
    """

    def __init__(self, width: int, config: BalanceConfig, *, seed: int, expected: int, device: torch.device) -> None:
        super().__init__(width, config.model_copy(update={"backend": "torch"}), seed=seed, expected=expected)
        self.choice = "torch: in block Gram form over the ranks"
        self.move(device)

    def feed_part(self, rows: torch.Tensor, add: Sum) -> tuple[Signs, NDArray[np.bool_]]:
        """As `feed`, for rows (m, width) of which every rank has its part; collective.

        Raises:
            UsageError: the running sum is no longer finite.
        """
        start, count = self._rule.index, len(rows)
        h: Any = self.running_sum
        uniform = self._rule.draw(count)
        with torch.no_grad():
            rows = rows.to(h.device, h.dtype)
            local = torch.cat([rows @ rows.t(), (rows @ h)[:, None]], dim=1).cpu().double().numpy()
            both = add(np.ascontiguousarray(local))
            if _finite(both, self._dtype):
                scale, weights = recurrence(both[:, :-1], both[:, -1], self._rule, uniform)
                torch.addmv(h, rows.t(), torch.from_numpy(weights).to(h), beta=scale, out=h)
                signs, dropped = np.sign(weights).astype(np.int8), np.zeros(count, dtype=bool)
            else:
                signs, dropped = self._one_by_one(rows, h, uniform, add)
        self._keep(start, signs)
        return signs, dropped

    def _one_by_one(self, rows: torch.Tensor, h: Any, uniform: NDArray[np.float64], add: Sum) -> tuple[Signs, NDArray[np.bool_]]:
        """Apply the literal rule, row by row, so that the same rows are dropped."""
        signs, dropped = np.ones(len(rows), dtype=np.int8), np.zeros(len(rows), dtype=bool)
        rule, plain = self._rule, self._rule.plain
        for k, row in enumerate(rows):
            damped = h * rule.damping
            # A sum of finite products may overflow, and a non-finite part makes the sum non-finite: as in one process.
            local = np.array([float(damped @ row), 0.0 if plain else float(row @ row), float(not torch.isfinite(h).all())])
            product, square, sick = add(local)
            if sick:
                raise UsageError("running_sum holds non-finite values: every pair would be dropped; start the epoch with zeros")
            if not _finite(np.array([product, square]), self._dtype):
                dropped[k] = True
                continue
            signs[k] = decide(float(product), threshold(rule.code, float(square), rule.state), float(uniform[k]))
            h.copy_(damped.add_(row, alpha=int(signs[k])))
        return signs, dropped


def _finite(values: NDArray[np.float64], dtype: type[Any]) -> bool:
    """Whether values are finite in the type of the running sum, as one process would see them."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(values.astype(dtype)).all())


class ShardedCoordinator(Coordinator):
    """All ranks balance all pairs together, each in its part of the coordinates.

    Args:
        rank, size: this rank, and the number of ranks W.
        pairs: pairs of an epoch, n // 2.
        format: the dimension d, and most pairs in a message; differences travel as they are.
        config: how to balance, and the seed of random sign rules.
        device: the model's.
    """

    shares_balance = False

    def __init__(
        self,
        rank: int,
        size: int,
        pairs: int,
        format: Format,
        config: GraBConfig,
        device: torch.device,
    ) -> None:
        share = -(-format.dimension // size)
        balancer = ShardBalancer(share, config.balance, seed=config.seed, expected=size * pairs, device=device)
        super().__init__(size, pairs, balancer=balancer, room=format.room)
        self._parts, self._share, self.aside = balancer, share, SideStream(device)
        self._outgoing = np.zeros(size * format.room * share, dtype=np.float32)
        self._memory = host_memory(size * format.room * share, device=device)
        self._step = max(1, _ROWS_AT_ONCE // size)
        self.announcement = "all ranks balance, each its part of" if rank == 0 else None

    def prepare(self, communicator: Communicator) -> None:
        """Nothing has to be compiled."""

    def gather_headers(self, communicator: Communicator, header: Header, extra: NDArray[np.int64] = NOTHING) -> NDArray[np.int64]:
        """See `Coordinator.gather_headers`: every rank needs the extras."""
        return share_headers(communicator, header, extra, self._room)

    def exchange(self, communicator: Communicator, message: PairMessage) -> None:
        """Bring each rank its part of all differences, and balance them together."""
        seen = self.gather_headers(communicator, message.header, message.seen.astype(np.int64))
        size, count = seen.shape
        outgoing = self._cut(message.differences)
        received = self._memory[: outgoing.size].view(size, count, self._share)
        communicator.alltoall(outgoing, received.numpy())
        self.bytes_sent += outgoing.nbytes // size * (size - 1)

        def add(local: NDArray[np.float64]) -> NDArray[np.float64]:
            total = np.empty_like(local)
            communicator.reduce_sum(local, total if communicator.rank == 0 else None, 0)
            communicator.broadcast(total, 0)
            return total

        for first in range(0, count, self._step):
            part = slice(first, first + self._step)
            pairs, ranks = np.nonzero(seen[:, part].T)  # pair outermost, rank innermost
            if not len(pairs):
                continue
            whole = count == 1 and len(pairs) == size
            rows = received[:, 0] if whole else received[:, part][torch.from_numpy(ranks), torch.from_numpy(pairs)]
            with self.aside():
                signs, dropped = self._parts.feed_part(rows, add)
            self.note(signs, dropped, ranks, message.header.pair + first + pairs)

    def finish(self, communicator: Communicator, end: Header) -> tuple[Signs, NDArray[np.int64]]:
        """See `Coordinator.finish`: every rank has decided every sign."""
        self.gather_headers(communicator, end)
        result = self.signs.copy(), self.dropped.copy()
        self.reset(end.epoch + 1)
        return result

    def _cut(self, differences: NDArray[np.float32]) -> NDArray[np.float32]:
        """Differences (k, d) as parts (W, k, share), of which the last may end in zeros."""
        count, dimension = differences.shape
        size, share = len(self.signs), self._share
        parts = self._outgoing[: size * count * share].reshape(size, count, share)
        for rank, part in enumerate(parts):
            piece = differences[:, rank * share : min((rank + 1) * share, dimension)]
            part[:, : piece.shape[1]] = piece
            part[:, piece.shape[1] :] = 0
        return parts

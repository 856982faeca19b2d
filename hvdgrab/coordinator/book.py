"""Where a run stands: which order every rank follows, and how far this rank has come in it.

The book is shared by the sampler, which hands units out, and the ordering session, which counts the backward passes that
consume them. It knows neither torch nor communication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance import seeded_order
from hvdgrab.config import GraBConfig
from hvdgrab.errors import StateError, UsageError

Orders = NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """A unit that a backward pass has consumed."""

    position: int
    """Its place in the rank's current order, 0 … n − 1."""
    unit: int
    stand_in: bool = False
    """Another unit's data was seen in its place (see `OrderBook.adopt`): its gradient must not be balanced."""


class OrderBook:
    """The orders of the current epoch and this rank's position in its own.

    The position counts units that a backward pass has consumed, not units handed out: workers that prefetch run ahead.

    Args:
        config: the rule and its seed.
        n: units of every rank.
        rank: this rank.
        size: number of ranks W.
    """

    def __init__(self, config: GraBConfig, n: int, rank: int, size: int) -> None:
        self.config, self.n, self.rank, self.size = config, n, rank, size
        self.epoch = 0
        self.position = 0
        self.handed = 0
        self.orders: Orders = self.seeded_orders(0)
        self.consumed = False
        self.exhausted = False
        self.next_orders: Callable[[], Orders] = self._unattended_orders
        self.attended = False
        self._start = 0
        self._era = 0
        self._stand_ins: frozenset[int] = frozenset()

    @property
    def order(self) -> Orders:
        """(n,) int64: this rank's order of the current epoch."""
        row: Orders = self.orders[self.rank]
        return row

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration will run: the current one until one of its units has been consumed."""
        return self.epoch + 1 if self._is_over else self.epoch

    @property
    def _is_over(self) -> bool:
        # Where no session counts backward passes, seeded orders go by what was handed out.
        return self.consumed or self.position == self.n or (self.exhausted and not self.attended)

    def seeded_orders(self, epoch: int) -> Orders:
        """(W, n) int64: the orders that the seed alone gives for an epoch."""
        rule, seed, block = self.config.order, self.config.seed, self.config.block_size
        rows = [
            seeded_order(rule, n=self.n, epoch=epoch, seed=seed, rank=rank, size=self.size, block_size=block)
            for rank in range(self.size)
        ]
        return np.stack(rows)

    def attend(self, next_orders: Callable[[], Orders]) -> None:
        """Let a session decide the orders of later epochs."""
        self.next_orders, self.attended = next_orders, True

    def units(self) -> Iterator[tuple[int, int]]:
        """Yield (epoch, unit) in this rank's order, from the current position; the next epoch's if this one has begun.

        A generator: nothing happens before its first unit is asked for, and nothing is communicated before a unit of an earlier
        one has been consumed.
        """
        if self._is_over:
            self._enter(self.epoch + 1, self.next_orders())
        era, taken = self._era, 0
        while self._start + taken < self.n:  # both change when a state is adopted on the way
            position = self._start + taken
            taken += 1
            self.handed = max(self.handed, position + 1)
            yield self.epoch, int(self.order[position])
            if self._era != era:
                raise UsageError(
                    f"rank {self.rank}: a newer iterator over the sampler has begun epoch {self.epoch} while this one was on "
                    "its way: a second iterator ends the epoch of the first. To look at batches during an epoch, use a "
                    "DataLoader with a sampler of its own"
                )
        self.exhausted = True

    def consume(self) -> Place:
        """Count the unit whose gradient has just been computed.

        Raises:
            UsageError: no unit was handed out for it.
        """
        if self.handed == self._start == self.position:
            raise UsageError(
                f"rank {self.rank}: a backward pass has finished, but no batch was drawn from GraBSampler: build the "
                "DataLoader with batch_sampler=sampler (a framework may have replaced it), and pass the same sampler to "
                "GraBOptimizer"
            )
        if self.position >= self.handed:
            raise UsageError(
                f"rank {self.rank}, epoch {self.epoch}: more backward passes than units: {self.handed} of {self.n} units were "
                "handed out, and all of them have had theirs. Put passes that do not train in `with optimizer.paused():`, and "
                "where a batch is split into k passes say GraBOptimizer(..., passes_per_unit=k)"
            )
        position = self.position
        self.position += 1
        self.consumed = True
        return Place(position, int(self.order[position]), position in self._stand_ins)

    def expect_epoch(self, epoch: int) -> None:
        """Check a script's ``set_epoch``: epochs are counted here, and another count would mean another order."""
        if epoch != self.next_epoch:
            raise UsageError(
                f"rank {self.rank}: set_epoch({epoch}), but the next iteration is epoch {self.next_epoch}: start the loop at "
                "sampler.next_epoch (after load_state_dict it is the saved one)"
            )

    def restore(self, epoch: int, position: int, orders: Orders) -> None:
        """Continue an epoch that was saved after ``position`` of its units."""
        self._enter(epoch, orders)
        self.position = self.handed = self._start = position

    def adopt(self, epoch: int, position: int, orders: Orders) -> int:
        """Take over rank 0's saved place at the first unit, when units of the fresh order are already on their way to the model.

        A unit in flight that the saved epoch still has to see simply moves to the front.  One that it has seen already stands
        in for one from the end of the order, which this epoch then does not see.

        Returns:
            Units that stand in for others: examples seen twice in this epoch.

        Raises:
            StateError: more units are in flight than the epoch has left.
        """
        in_flight = [int(unit) for unit in self.order[: self.handed]]
        rest = [int(unit) for unit in orders[self.rank, position:]]
        if len(in_flight) > len(rest):
            raise StateError(
                f"rank {self.rank}: rank 0's state is at unit {position} of {self.n}, and this rank has already drawn "
                f"{len(in_flight)} batches, more than the {len(rest)} that are left: call load_state_dict on every rank before "
                "the loader is iterated"
            )
        later = [unit for unit in rest if unit not in set(in_flight)]
        front, stand_ins = [], set()
        for offset, unit in enumerate(in_flight):
            known = unit in rest
            front.append(unit if known else later.pop())
            if not known:
                stand_ins.add(position + offset)
        self.orders, self.epoch = orders.copy(), epoch
        self.orders[self.rank, position:] = front + later
        self.position = self._start = position
        self.handed = position + len(in_flight)
        self._stand_ins = frozenset(stand_ins)
        return len(stand_ins)

    def _enter(self, epoch: int, orders: Orders) -> None:
        self.epoch, self.orders = epoch, orders
        self._era += 1
        self.position = self.handed = self._start = 0
        self.consumed = self.exhausted = False
        self._stand_ins = frozenset()

    def _unattended_orders(self) -> Orders:
        if self.config.uses_gradients:
            raise UsageError(
                f"the order '{self.config.order}' is made from gradients, but no GraBOptimizer was made over this sampler: "
                "GraBOptimizer(optimizer, sampler, model), or choose a seeded order such as 'rr'"
            )
        return self.seeded_orders(self.epoch + 1)


def orders_digest(orders: Orders) -> str:
    """A hash (hex, 16 characters) of all ranks' orders."""
    return hashlib.sha256(np.ascontiguousarray(orders, dtype="<i8").tobytes()).hexdigest()[:16]


def named_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 1, 2 and 5``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"

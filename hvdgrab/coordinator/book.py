"""Where a run stands: which order every rank follows, and how far this rank has come in it.

The sampler and the ordering session share the book: the sampler hands units out, the session counts the backward passes that
consume them.  It knows neither torch nor communication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance import seeded_order
from hvdgrab.config import GraBConfig
from hvdgrab.errors import StateError, UsageError

Orders = NDArray[np.int64]


class Place(NamedTuple):
    """A unit that a backward pass has consumed."""

    position: int
    """Its place in the rank's current order, 0 … n − 1."""
    unit: int
    stand_in: bool = False
    """Whether another unit's data was seen in its place (see `OrderBook.adopt`): its gradient must not be balanced."""


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
        self.orders: Orders = self.seeded_orders(0)
        """(W, n) int64: of the current epoch."""
        self.position = 0
        """Units of this epoch that a backward pass has consumed; the next one's place in the order."""
        self.handed = 0
        """Units of this epoch that were handed out, or seen before a saved state: the place up to which iterators have come."""
        self.consumed = False
        """Whether a unit has been consumed since this process entered the epoch."""
        self.exhausted = False
        """Whether an iterator has come to the epoch's end."""
        self.attended = False
        """Whether a session counts backward passes; without one, epochs end when their units have been handed out."""
        self._start = 0
        """The place at which this process entered the epoch: 0, or a saved one."""
        self._era = 0
        """Counts epochs entered: an iterator of an earlier era must not go on."""
        self._stand_ins: frozenset[int] = frozenset()
        """Places at which another unit's data is seen, see `adopt`."""

    @property
    def order(self) -> Orders:
        """(n,) int64: this rank's order of the current epoch."""
        row: Orders = self.orders[self.rank]
        return row

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration will run: the current one until one of its units has been consumed."""
        return self.epoch + 1 if self.is_over else self.epoch

    @property
    def is_over(self) -> bool:
        """Whether the next unit that is asked for belongs to the next epoch."""
        return self.consumed or self.position == self.n or (self.exhausted and not self.attended)

    def seeded_orders(self, epoch: int) -> Orders:
        """(W, n) int64: the orders that the seed alone gives for an epoch."""
        rule, seed, block = self.config.order, self.config.seed, self.config.block_size
        rows = [
            seeded_order(rule, n=self.n, epoch=epoch, seed=seed, rank=rank, size=self.size, block_size=block)
            for rank in range(self.size)
        ]
        return np.stack(rows)

    def describe(self) -> str:
        """Where this rank is, for messages."""
        return f"rank {self.rank}, epoch {self.epoch}, after {self.position} of {self.n} units"

    def units(self) -> Iterator[tuple[int, int]]:
        """Yield (epoch, unit) in this rank's order, from the current position to the end of the epoch.

        Raises:
            UsageError: another iterator has begun the next epoch meanwhile.
        """
        era, taken = self._era, 0
        while self._start + taken < self.n:  # `_start` changes if a state is adopted on the way
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
        """Count the unit whose gradient has just been computed, and return its place.

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
        self.enter(epoch, orders)
        self.position = self.handed = self._start = position

    def adopt(self, epoch: int, position: int, orders: Orders) -> int:
        """Take over rank 0's saved place at the first unit, when units of the fresh order have already been drawn.

        A drawn unit that the saved epoch still has to see moves to the front.  One that it has seen already stands in for one
        from the end of the order, which this epoch then does not see.

        Returns:
            Units that stand in for others: examples seen twice in this epoch.

        Raises:
            StateError: more units were drawn than the epoch has left.
        """
        drawn = self.order[: self.handed].tolist()
        rest = orders[self.rank, position:].tolist()
        if len(drawn) > len(rest):
            raise StateError(
                f"rank {self.rank}: rank 0's state is at unit {position} of {self.n}, and this rank has already drawn "
                f"{len(drawn)} batches, more than the {len(rest)} that are left: call load_state_dict on every rank before "
                "the loader is iterated"
            )
        repeated = set(drawn) - set(rest)
        later = [unit for unit in rest if unit not in set(drawn)]
        front = [later.pop() if unit in repeated else unit for unit in drawn]
        self.epoch, self.orders = epoch, orders.copy()
        self.orders[self.rank, position:] = front + later
        self.position = self._start = position
        self.handed = position + len(drawn)
        self._stand_ins = frozenset(position + offset for offset, unit in enumerate(drawn) if unit in repeated)
        return len(repeated)

    def enter(self, epoch: int, orders: Orders) -> None:
        """Begin an epoch."""
        self.epoch, self.orders = epoch, orders
        self._era += 1
        self.position = self.handed = self._start = 0
        self.consumed = self.exhausted = False
        self._stand_ins = frozenset()

    def begin_next_epoch(self) -> None:
        """Begin the next epoch without a session.

        Raises:
            UsageError: its order is made from gradients.
        """
        if self.config.uses_gradients:
            raise UsageError(
                f"the order '{self.config.order}' is made from gradients, but no GraBOptimizer was made over this sampler: "
                "GraBOptimizer(optimizer, sampler, model), or choose a seeded order such as 'rr'"
            )
        self.enter(self.epoch + 1, self.seeded_orders(self.epoch + 1))


def orders_digest(orders: Orders) -> str:
    """A hash (hex, 16 characters) of all ranks' orders."""
    return hashlib.sha256(np.ascontiguousarray(orders, dtype="<i8").tobytes()).hexdigest()[:16]


def named_ranks(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 1, 2 and 5``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"

"""The memory that the ranks of a node share: slots for payloads, and counters of each rank's progress.

A call consists of *steps*; step t uses slot t modulo the number of slots.  Each rank has three counters of steps, which it
completes in order: ``wrote`` (its part is in the slot), ``ready`` (the parts of other nodes are there too; counted by the node's
leader), and ``done`` (it no longer needs the slot).  A slot is free once every rank is done with it.  Only its own rank changes a
counter, so that no locks are needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_LINE = 64
"""Bytes between counters: a cache line each, because every rank polls them."""

Bytes = NDArray[np.uint8]


class NodeWindow:
    """One rank's view of its node's memory.

    Args:
        memory: (`window_bytes`,) uint8, shared by all ranks of the node; zero at the start.
        ranks: number of ranks of the node.
        local: this rank's number in the node.
        slots: number of slots.
        slot_bytes: size of each.
        fence: makes this rank's writes visible to the others in order, and theirs to this rank.
    """

    def __init__(self, memory: Bytes, ranks: int, local: int, slots: int, slot_bytes: int, fence: Callable[[], object]) -> None:
        counters = memory[: _counter_bytes(ranks)].view(np.int64).reshape(3, ranks, _LINE // 8)[:, :, 0]
        self.wrote, self.ready, self.done = counters
        self._slots: Bytes = memory[_counter_bytes(ranks) :].reshape(slots, slot_bytes)
        self._local = local
        self._fence = fence
        self.slots, self.slot_bytes = slots, slot_bytes

    def slot(self, step: int) -> Bytes:
        """The slot of a step: (slot_bytes,) uint8."""
        slot: Bytes = self._slots[step % self.slots]
        return slot

    def is_free(self, step: int) -> bool:
        """Whether every rank is done with the step that used the slot before."""
        return self.reached(self.done, step - self.slots)

    def reached(self, counter: NDArray[np.int64], step: int, local: int | None = None) -> bool:
        """Whether rank ``local``, or every rank, has completed ``step``; if so, what they wrote before may be read."""
        behind = bool(counter[local] <= step) if local is not None else bool((counter <= step).any())
        self._fence()
        return not behind

    def behind(self, counter: NDArray[np.int64], step: int) -> list[int]:
        """List the local numbers of the ranks that have not completed ``step``."""
        return np.flatnonzero(counter <= step).tolist()  # type: ignore[no-any-return]

    def advance(self, counter: NDArray[np.int64], step: int) -> None:
        """Tell the others that this rank has completed ``step``."""
        self._fence()
        counter[self._local] = step + 1
        self._fence()


def window_bytes(ranks: int, slots: int, slot_bytes: int) -> int:
    """Size of a node's window."""
    return _counter_bytes(ranks) + slots * slot_bytes


def _counter_bytes(ranks: int) -> int:
    return 3 * ranks * _LINE

"""Units: how N examples are dealt to the ranks of a run.

A unit is what one backward pass sees on one rank, by default one local batch.  Every rank holds the same number of units n;
no example is dropped or repeated, and unit sizes differ by at most one example.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.streams import Purpose, generator
from hvdgrab.errors import UsageError


def count_units(examples: int, size: int, batch_size: int) -> int:
    """The number of units n of each rank: max(1, min(ceil(N / (W·B)), N // W)).

    The second bound keeps every unit non-empty; only if it decides can a unit hold more than `batch_size` examples
    (W = 2, B = 1, N = 3: one unit a rank, of 2 and 1 examples).

    Args:
        examples: N, examples in the dataset.
        size: W, ranks.
        batch_size: B, examples that a rank wants in a batch.

    Raises:
        UsageError: no examples, fewer examples than ranks, or a size or batch size below 1.
    """
    if size < 1 or batch_size < 1:
        raise UsageError(f"the number of ranks and the batch size must be at least 1, not {size} and {batch_size}")
    if examples < 1:
        raise UsageError(f"the dataset has {examples} examples: there is nothing to train on")
    if examples < size:
        raise UsageError(f"the dataset has {examples} examples for {size} ranks: each needs at least one; start fewer ranks")
    return max(1, min(-(-examples // (size * batch_size)), examples // size))


@dataclass(frozen=True, eq=False)
class Units:
    """The examples of every unit of every rank; made by `form_units`."""

    examples: int
    """N, examples in the dataset."""
    size: int
    """W, ranks."""
    n: int
    """Units of each rank."""
    permutation: NDArray[np.int64] = field(repr=False)
    """(N,) int64, read-only: rank r's unit u is the chunk r·n + u of W·n near-equal ones."""

    def members(self, rank: int, unit: int) -> NDArray[np.int64]:
        """The dataset indices of one unit: (b,) int64, a new array.

        Raises:
            UsageError: no such rank or unit.
        """
        if not (0 <= rank < self.size and 0 <= unit < self.n):
            raise UsageError(f"there is no unit {unit} on rank {rank}: ranks are 0 … {self.size - 1}, units 0 … {self.n - 1}")
        chunk = rank * self.n + unit
        members: NDArray[np.int64] = self.permutation[self._start(chunk) : self._start(chunk + 1)].copy()
        return members

    def digest(self) -> str:
        """A hash (hex, 64 characters) of the dealing: equal on all ranks exactly if they deal the examples alike."""
        state = hashlib.sha256(f"{self.examples} {self.size} {self.n} ".encode())
        state.update(self.permutation.astype("<i8", copy=False).tobytes())
        return state.hexdigest()

    def _start(self, chunk: int) -> int:
        # Rounding each border down spreads the longer chunks evenly over ranks and steps.
        return chunk * self.examples // (self.size * self.n)


def form_units(examples: int, size: int, batch_size: int, seed: int, *, epoch: int = 0, shuffle: bool = True) -> Units:
    """Deal the examples to units: W·n near-equal chunks of one permutation, rank 0's first.

    Args:
        examples: N, examples in the dataset.
        size: W, ranks.
        batch_size: B, the most examples of a unit (see `count_units` for the exception).
        seed: together with `epoch` decides the permutation.
        epoch: 0 if units stay the same for the whole run; the epoch's number if they are dealt anew (order ``reshuffle``).
        shuffle: False keeps the dataset's own order: rank 0 has its first N / W examples, and so on.

    Raises:
        UsageError: as `count_units`.
    """
    n = count_units(examples, size, batch_size)
    permutation = generator(seed, Purpose.UNITS, epoch).permutation(examples) if shuffle else np.arange(examples)
    permutation = permutation.astype(np.int64, copy=False)
    permutation.setflags(write=False)
    return Units(examples=examples, size=size, n=n, permutation=permutation)

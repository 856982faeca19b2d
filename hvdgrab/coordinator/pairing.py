"""From units to pair differences, on the host: the training thread's side of a rank's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.coordinator.gradient import CPU, Arrival, host_memory

BUFFERS = 2


class Batch(NamedTuple):
    """Finished pairs; their memory is filled again after `BUFFERS` - 1 further batches."""

    first: int
    """Number of the first pair."""
    differences: NDArray[np.float32]
    """(k, width) float32; to be read after ``arrived()``."""
    seen: NDArray[np.int8]
    """(k,) int8: 0 where one of the pair's two units had no vector."""
    arrived: Callable[[], object]
    """Waits for differences that still come from a device."""


class PairBuffer:
    """Forms v(first) − v(second) of consecutive units' vectors, in float32, in one of two message buffers on the host.

    While one buffer is filled the communication thread sends the other.  The caller adds nothing to an `empty` buffer while the
    batch before the last is still being sent.  Vectors on a GPU are subtracted there, and the difference is copied to pinned
    memory without waiting for the device: the communication thread waits, before it reads.

    Args:
        width: floats of a unit's vector: its gradient, or the linear sketch of it.
        pairs_per_message: most pairs in a batch.
        device: of the vectors.
    """

    def __init__(self, width: int, pairs_per_message: int, device: torch.device = CPU) -> None:
        self._capacity = pairs_per_message
        self._differences = host_memory(BUFFERS, pairs_per_message, width, device=device)
        self._rows = self._differences.numpy()
        self._away = torch.zeros(width, dtype=torch.float32, device=device) if device.type != "cpu" else None
        """The half pair, if it does not lie in its message buffer."""
        self._arrived: list[Callable[[], object]] = [_nothing] * BUFFERS
        self._seen = np.zeros((BUFFERS, pairs_per_message), dtype=np.int8)
        self._current = 0
        self._filled = 0
        self._first_pair = 0
        self._half = False

    @property
    def empty(self) -> bool:
        """Whether the next vector is the first one of a batch."""
        return not (self._filled or self._half)

    def add(self, vector: torch.Tensor | None) -> Batch | None:
        """Take the next unit's vector (width,) float32, or None if the unit had no backward pass of its own.

        Returns:
            The batch that this vector has filled, if it has.
        """
        if not self._half:
            self._seen[self._current, self._filled] = vector is not None
            if vector is not None:
                self._begin_pair(vector)
            self._half = True
            return None
        self._half = False
        if vector is None:
            self._seen[self._current, self._filled] = 0
        else:
            self._end_pair(vector)
        self._filled += 1
        return self.flush() if self._filled == self._capacity else None

    def flush(self) -> Batch | None:
        """The finished pairs, if there are any; the last batch of an epoch may be a partial one."""
        self._half = False
        if not self._filled:
            return None
        count, buffer = self._filled, self._current
        batch = Batch(
            self._first_pair, self._differences[buffer, :count].numpy(), self._seen[buffer, :count], self._arrived[buffer]
        )
        self._first_pair += count
        self._current, self._filled = (buffer + 1) % BUFFERS, 0
        return batch

    def begin(self, first_pair: int = 0) -> None:
        """Start an epoch, or go on in one from ``first_pair``."""
        self._first_pair, self._filled, self._half = first_pair, 0, False

    def unsent(self) -> torch.Tensor:
        """(k, width) float32: finished pairs that wait for their message, then the first vector of a half pair."""
        self._arrived[self._current]()
        rows = self._differences[self._current, : self._filled + int(self._half)].clone()
        if self._half:
            rows[-1] = self._place()
        return rows

    def resume(self, position: int, unsent: torch.Tensor | None) -> None:
        """Continue after ``position`` units, while nothing is being sent.

        What was `unsent` then is taken from ``unsent``; without it, its pairs count as not seen.
        """
        rows = 0 if unsent is None else unsent.shape[0]
        half = position % 2
        self.begin(first_pair=position // 2 - max(rows - half, 0))
        if unsent is not None and rows:
            self._filled = rows - half
            self._differences[self._current, : self._filled].copy_(unsent[: self._filled])
            self._seen[self._current, :rows] = 1
            if half:
                self._place().copy_(unsent[-1])
        elif half:
            self._seen[self._current, 0] = 0
        self._half = bool(half)

    def _place(self) -> torch.Tensor:
        """Where the half pair lies."""
        return self._differences[self._current, self._filled] if self._away is None else self._away

    def _begin_pair(self, vector: torch.Tensor) -> None:
        if self._away is not None:
            self._away.copy_(vector)
        else:  # NumPy's calls cost a fraction of torch's, which is what counts for a short vector
            self._rows[self._current, self._filled] = vector.numpy()

    def _end_pair(self, vector: torch.Tensor) -> None:
        if self._away is not None:
            self._away.sub_(vector)
            self._arrived[self._current] = Arrival(self._differences[self._current, self._filled], self._away).wait
        else:
            row = self._rows[self._current, self._filled]
            np.subtract(row, vector.numpy(), out=row)


def _nothing() -> None:
    """Differences that were formed on the host are there."""

"""From units to pair differences: the training thread's side of a rank's messages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.coordinator.staging import Arrival, host_memory

_BUFFERS = 2
CPU = torch.device("cpu")
Send = Callable[[int, NDArray[np.float32], NDArray[np.int8], Callable[[], object]], "Future[None]"]


class PairBuffer:
    """Forms v(first) − v(second) of consecutive units' vectors, in float32, in one of two message buffers on the host.

    While one buffer is filled the communication thread sends the other; a rank that is a whole message ahead waits for it
    (back-pressure).  Vectors on a GPU are subtracted there, and the difference is copied to pinned memory without waiting for
    the device: the communication thread waits, before it reads.

    Args:
        width: floats of a unit's vector: its gradient, or the linear sketch of it.
        pairs_per_message: most pairs in a message.
        send: called with (first pair, differences (k, width) float32, seen (k,) int8, arrived); returns a future that is done
            when they may be overwritten.  ``arrived()`` must be called before the differences are read.
        wait: waits for such a future, and raises what happened to it.
        device: of the vectors.
    """

    def __init__(
        self,
        width: int,
        pairs_per_message: int,
        send: Send,
        wait: Callable[[Future[None]], None],
        device: torch.device = CPU,
    ) -> None:
        self._send, self._wait = send, wait
        self._capacity = pairs_per_message
        away = device.type != "cpu"
        self._differences = host_memory(_BUFFERS, pairs_per_message, width, device=device)
        self._rows = self._differences.numpy()
        self._away = torch.zeros(width, dtype=torch.float32, device=device) if away else None
        """The half pair, where it does not lie in its message buffer."""
        self._arrived: list[Callable[[], object]] = [_nothing] * _BUFFERS
        self._seen = np.zeros((_BUFFERS, pairs_per_message), dtype=np.int8)
        self._in_flight: list[Future[None] | None] = [None] * _BUFFERS
        self._current = 0
        self._filled = 0
        self._first_pair = 0
        self._half = False

    def add(self, vector: torch.Tensor | None) -> None:
        """Take the next unit's vector (width,) float32; None where the unit had no backward pass of its own."""
        if not self._half:
            self._claim()
            self._seen[self._current, self._filled] = vector is not None
            if vector is not None:
                self._begin_pair(vector)
            self._half = True
            return
        self._half = False
        if vector is None:
            self._seen[self._current, self._filled] = 0
        else:
            self._end_pair(vector)
        self._filled += 1
        if self._filled == self._capacity:
            self.flush()

    def flush(self) -> None:
        """Send the finished pairs, if there are any; the last message of an epoch may be a partial one."""
        self._half = False
        if self._filled:
            count, buffer = self._filled, self._current
            self._in_flight[buffer] = self._send(
                self._first_pair,
                self._differences[buffer, :count].numpy(),
                self._seen[buffer, :count],
                self._arrived[buffer],
            )
            self._first_pair += count
            self._current, self._filled = (buffer + 1) % _BUFFERS, 0

    def begin(self, first_pair: int = 0) -> None:
        """Start an epoch, or go on in one from ``first_pair``."""
        self._first_pair, self._filled, self._half = first_pair, 0, False

    def drain(self) -> None:
        """Wait until everything sent so far has been balanced."""
        for future in self._in_flight:
            if future is not None:
                self._wait(future)

    def unsent(self) -> torch.Tensor:
        """(k, width) float32: finished pairs that wait for their message, then the first vector of a half pair."""
        self._arrived[self._current]()
        rows = self._differences[self._current, : self._filled + int(self._half)].clone()
        if self._half:
            rows[-1] = self._place()
        return rows

    def resume(self, position: int, unsent: torch.Tensor | None) -> None:
        """Continue after ``position`` units; what was unsent then is taken from ``unsent``, or its pairs count as not seen."""
        rows = 0 if unsent is None else unsent.shape[0]
        half = position % 2
        self.begin(first_pair=position // 2 - max(rows - half, 0))
        self._claim()
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

    def _claim(self) -> None:
        """Make sure that the current buffer is no longer being sent."""
        future = self._in_flight[self._current]
        if future is not None and self._filled == 0:
            self._wait(future)
            self._in_flight[self._current] = None


def _nothing() -> None:
    """Differences that were formed on the host are there."""

"""From units to pair differences: the training thread's side of a rank's messages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import torch
from numpy.typing import NDArray

_BUFFERS = 2


class PairBuffer:
    """Forms g(first) − g(second) of consecutive units, in place, in one of two message buffers.

    While one buffer is filled the communication thread sends the other; a rank that is a whole message ahead waits for it
    (back-pressure).

    Args:
        dimension: d, floats of a gradient.
        pairs_per_message: most pairs in a message.
        send: called with (first pair, differences (k, d) float32, seen (k,) int8); returns a future that is done when they may
        be overwritten.
        wait: waits for such a future, and raises what happened to it.
    """

    def __init__(
        self,
        dimension: int,
        pairs_per_message: int,
        send: Callable[[int, NDArray[np.float32], NDArray[np.int8]], Future[None]],
        wait: Callable[[Future[None]], None],
    ) -> None:
        self._send, self._wait = send, wait
        self._capacity = pairs_per_message
        self._differences = torch.zeros(_BUFFERS, pairs_per_message, dimension, dtype=torch.float32)
        self._seen = np.zeros((_BUFFERS, pairs_per_message), dtype=np.int8)
        self._in_flight: list[Future[None] | None] = [None] * _BUFFERS
        self._current = 0
        self._filled = 0
        self._first_pair = 0
        self._half = False

    def add(self, gradient: torch.Tensor | None) -> None:
        """Take the next unit's gradient (d,), any float dtype and device; None where the unit had no backward pass of its own."""
        slot = self._differences[self._current, self._filled]
        if not self._half:
            self._claim()
            self._seen[self._current, self._filled] = gradient is not None
            if gradient is not None:
                slot.copy_(gradient)
            self._half = True
            return
        self._half = False
        if gradient is None:
            self._seen[self._current, self._filled] = 0
        else:
            slot.sub_(gradient.to(slot.device))
        self._filled += 1
        if self._filled == self._capacity:
            self.flush()

    def flush(self) -> None:
        """Send the finished pairs, if there are any; the last message of an epoch may be a partial one."""
        self._half = False
        if self._filled:
            count, buffer = self._filled, self._current
            self._in_flight[buffer] = self._send(
                self._first_pair, self._differences[buffer, :count].numpy(), self._seen[buffer, :count]
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
        """(k, d) float32: finished pairs that wait for their message, then the first gradient of a half pair."""
        return self._differences[self._current, : self._filled + int(self._half)].clone()

    def resume(self, position: int, unsent: torch.Tensor | None) -> None:
        """Continue after ``position`` units; what was unsent then is taken from ``unsent``, or its pairs count as not seen."""
        rows = 0 if unsent is None else unsent.shape[0]
        half = position % 2
        self.begin(first_pair=position // 2 - max(rows - half, 0))
        self._claim()
        if unsent is not None and rows:
            self._differences[self._current, :rows].copy_(unsent)
            self._seen[self._current, :rows] = 1
            self._filled = rows - half
        elif half:
            self._seen[self._current, 0] = 0
        self._half = bool(half)

    def _claim(self) -> None:
        """Make sure that the current buffer is no longer being sent."""
        future = self._in_flight[self._current]
        if future is not None and self._filled == 0:
            self._wait(future)
            self._in_flight[self._current] = None

"""The choice between flat and hierarchical communication, by operation and payload size, measured once at the start.

Rank 0's clock decides for all ranks, so that every rank makes the same calls.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hvdgrab.comm.communicator import Buffer, Communicator, ForwardingCommunicator
from hvdgrab.comm.hierarchical import HierarchicalCommunicator

OPERATIONS = ("gather", "allgather", "broadcast")
SIZES = (1024, 8192, 65536)
"""Bytes a rank; larger payloads use what was faster for the largest size."""

REPEATS = 5
BUDGET = 0.5
"""Seconds after which measuring stops at the next size."""

MOST_RANKS = 64
"""Nothing is measured in larger worlds, because every rank would open a connection to every other."""


@dataclass(frozen=True)
class Calibration:
    """Which of the two is faster."""

    flat: Mapping[str, Mapping[int, bool]]
    """Whether flat is faster, by operation and by largest payload in bytes; the last entry also holds for larger payloads."""
    measured: bool = True

    def is_flat(self, operation: str, size: int) -> bool:
        """Whether to use flat communication for a payload of ``size`` bytes a rank."""
        verdicts = self.flat.get(operation, {})
        last = False
        for most, last in sorted(verdicts.items()):
            if size <= most:
                return last
        return last

    def text(self) -> str:
        """Describe the choice in one line."""
        parts = []
        for operation in OPERATIONS:
            verdicts = sorted(self.flat.get(operation, {}).items()) or [(0, False)]
            names = [(most, "flat" if flat else "hierarchical") for most, flat in verdicts]
            changes = [(most, name) for (most, name), (_, later) in itertools.pairwise(names) if name != later]
            steps = [f"{name} to {_size(most)}" for most, name in changes]
            last = names[-1][1]
            parts.append(f"{operation} {', '.join([*steps, f'{last} above'] if steps else [last])}")
        return "; ".join(parts) + (" (measured)" if self.measured else f" (not measured with more than {MOST_RANKS} ranks)")


class ChoosingCommunicator(ForwardingCommunicator):
    """Makes each call with the faster communicator."""

    def __init__(self, flat: Communicator, hierarchical: HierarchicalCommunicator, calibration: Calibration) -> None:
        super().__init__(hierarchical)
        self._flat, self._calibration = flat, calibration

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.gather`."""
        self._pick("gather", send).gather(send, receive, root)

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.allgather`."""
        self._pick("allgather", send).allgather(send, receive)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """See `Communicator.broadcast`."""
        self._pick("broadcast", buffer).broadcast(buffer, root)

    def _pick(self, operation: str, payload: Buffer) -> Communicator:
        return self._flat if self._calibration.is_flat(operation, payload.nbytes) else self.inner


def calibrate(flat: Communicator, hierarchical: Communicator) -> Calibration:
    """Measure both; collective, with the same choice on all ranks.  Takes `BUDGET` seconds, and at most one size longer."""
    if flat.size > MOST_RANKS:
        return Calibration({}, measured=False)
    verdicts: dict[str, dict[int, bool]] = {operation: {} for operation in OPERATIONS}
    began = time.monotonic()
    for size in SIZES:
        for operation in OPERATIONS:
            times = [_median(communicator, flat, operation, size) for communicator in (flat, hierarchical)]
            verdict = np.array([times[0] < times[1], time.monotonic() - began > BUDGET], dtype=np.int8)
            flat.broadcast(verdict, 0)
            verdicts[operation][size] = bool(verdict[0])
        if verdict[1]:
            break
    return Calibration(verdicts)


def _median(communicator: Communicator, meeting: Communicator, operation: str, size: int) -> float:
    """Median seconds on rank 0 from the start of a call on all ranks to its end on all ranks."""
    own = np.full(size, communicator.rank, dtype=np.uint8)
    rows = np.empty((communicator.size, size), dtype=np.uint8) if operation == "allgather" or communicator.rank == 0 else None
    seconds = []
    for _ in range(1 + REPEATS):
        _meet(meeting)
        began = time.monotonic()
        if operation == "gather":
            communicator.gather(own, rows, 0)
        elif operation == "broadcast":
            communicator.broadcast(own, 0)
        elif rows is not None:
            communicator.allgather(own, rows)
        _meet(meeting)
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds[1:])  # the first call opens connections


def _meet(communicator: Communicator) -> None:
    """Wait for all ranks, by a reduction to rank 0 and a broadcast."""
    one = np.ones(1, dtype=np.int64)
    communicator.reduce_sum(one, np.empty_like(one) if communicator.rank == 0 else None, 0)
    communicator.broadcast(one, 0)


def _size(count: int) -> str:
    return f"{count // 1024} KiB"

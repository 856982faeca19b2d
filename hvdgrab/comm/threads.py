"""Ranks as threads of one process: the communicator for tests and simulations.

It keeps the contract of the real ones, including their strictness: a rank that makes another call than the others is an error
that names it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer, Communicator
from hvdgrab.errors import CommunicationError, CommunicatorClosed

Result = TypeVar("Result")
AnyCommunicator = TypeVar("AnyCommunicator", bound=Communicator)


class _Meeting:
    """One collective call: the contributions that have arrived so far."""

    def __init__(self) -> None:
        self.signatures: dict[int, tuple[object, ...]] = {}
        self.data: dict[int, Buffer] = {}
        self.left = 0


class _World:
    """What the ranks of a simulated job share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.meetings: dict[int, _Meeting] = {}
        self.notices: list[list[tuple[int, NDArray[np.int64]]]] = [[] for _ in range(size)]
        """For every rank: sender and notice of those that it has not read yet."""
        self.cancelled = False


class ThreadCommunicator:
    """One thread's end of a simulated world; made by `thread_world`."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world = world
        self._calls = 0
        self.rank = rank
        self.size = world.size
        self.waiting_for: list[int] = []

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.gather`."""
        parts = self._meet(("gather", send.shape, send.dtype.str, root), send)
        if receive is not None:
            for rank, part in parts.items():
                receive[rank] = part

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.allgather`."""
        for rank, part in self._meet(("allgather", send.shape, send.dtype.str), send).items():
            receive[rank] = part

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.alltoall`."""
        for rank, blocks in self._meet(("alltoall", send.shape, send.dtype.str), send).items():
            receive[rank] = blocks[self.rank]

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """See `Communicator.broadcast`."""
        parts = self._meet(("broadcast", buffer.shape, buffer.dtype.str, root), buffer)
        buffer[...] = parts[root]

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.reduce_sum`; ranks are added in their order."""
        parts = self._meet(("reduce_sum", send.shape, send.dtype.str, root), send)
        if receive is not None:
            receive[...] = 0
            for rank in range(self.size):
                receive += parts[rank]

    def notify(self, notice: NDArray[np.int64]) -> None:
        """See `Communicator.notify`."""
        with self._world.condition:
            self._check_open()
            for rank in set(range(self.size)) - {self.rank}:
                self._world.notices[rank].append((self.rank, notice.copy()))

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """See `Communicator.notices`."""
        with self._world.condition:
            self._check_open()
            arrived, self._world.notices[self.rank] = self._world.notices[self.rank], []
        return arrived

    def cancel(self) -> None:
        """Wake and end every rank of the world."""
        with self._world.condition:
            self._world.cancelled = True
            self._world.condition.notify_all()

    def close(self) -> None:
        """Nothing is held."""

    def _check_open(self) -> None:
        if self._world.cancelled:
            raise CommunicatorClosed(f"rank {self.rank}: the communicator is closed")

    def _meet(self, signature: tuple[object, ...], send: Buffer) -> dict[int, Buffer]:
        world, number = self._world, self._calls
        self._calls += 1
        with world.condition:
            meeting = world.meetings.setdefault(number, _Meeting())
            meeting.signatures[self.rank] = signature
            meeting.data[self.rank] = np.array(send, copy=True)
            world.condition.notify_all()
            self.waiting_for = [rank for rank in range(self.size) if rank not in meeting.data]
            world.condition.wait_for(lambda: len(meeting.data) == world.size or world.cancelled)
            if len(meeting.data) < world.size:
                raise CommunicatorClosed(f"rank {self.rank}: closed while call {number} ({signature[0]}) waited for other ranks")
            meeting.left += 1
            if meeting.left == world.size:
                del world.meetings[number]
        for rank, other in meeting.signatures.items():
            if other != signature:
                raise CommunicationError(f"call {number}: rank {self.rank} does {signature}, rank {rank} does {other}")
        return meeting.data


def thread_world(size: int) -> list[ThreadCommunicator]:
    """The communicators of a simulated job of ``size`` ranks, in rank order."""
    world = _World(size)
    return [ThreadCommunicator(world, rank) for rank in range(size)]


def run_ranks(size: int, work: Callable[[ThreadCommunicator], Result], timeout: float = 60.0) -> list[Result]:
    """Run ``work(communicator)`` on ``size`` threads and return the results in rank order.

    The first rank that raises ends the others, as a launcher would, and its exception is raised here.

    Raises:
        TimeoutError: ranks still wait for each other after ``timeout`` seconds.
    """
    return run_all(thread_world(size), work, timeout)


def run_all(
    communicators: Sequence[AnyCommunicator], work: Callable[[AnyCommunicator], Result], timeout: float = 60.0
) -> list[Result]:
    """`run_ranks` with communicators that exist already, of all ranks of a world."""
    with ThreadPoolExecutor(len(communicators)) as pool:
        futures: list[Future[Result]] = [pool.submit(work, communicator) for communicator in communicators]
        done, pending = wait(futures, timeout=timeout, return_when=FIRST_EXCEPTION)
        if pending:
            communicators[0].cancel()
    failed = [future.exception() for future in futures if future in done and future.exception() is not None]
    if failed and failed[0] is not None:
        raise failed[0]
    if pending:
        raise TimeoutError(f"{len(pending)} of {len(communicators)} ranks did not finish within {timeout} s")
    return [future.result() for future in futures]

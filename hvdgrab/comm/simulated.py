"""Ranks as threads of one process, for tests and simulations: flat, in simulated nodes, and with a server.

These communicators are as strict as the real ones: if a rank makes another call than the others, the error names it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer, Communicator
from hvdgrab.comm.hierarchical import HierarchicalCommunicator
from hvdgrab.comm.link import EMPTY, Body, Message, Row
from hvdgrab.comm.topology import Topology
from hvdgrab.comm.waiting import Waiting
from hvdgrab.comm.window import Bytes, NodeWindow, window_bytes
from hvdgrab.errors import CommunicationError, CommunicatorClosed

Result = TypeVar("Result")
AnyCommunicator = TypeVar("AnyCommunicator", bound=Communicator)


class _Meeting:
    """The contributions to one collective call so far."""

    def __init__(self) -> None:
        self.signatures: dict[int, tuple[object, ...]] = {}
        self.data: dict[int, Buffer] = {}
        self.left = 0


class _World:
    """The state that the ranks of a simulated job share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.condition = threading.Condition()
        self.meetings: dict[int, _Meeting] = {}
        self.notices: list[list[tuple[int, NDArray[np.int64]]]] = [[] for _ in range(size)]
        """For every rank, senders and notices that it has not read."""
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
        """Cancel the calls of every rank of the world."""
        with self._world.condition:
            self._world.cancelled = True
            self._world.condition.notify_all()

    def close(self) -> None:
        """Do nothing: there are no resources."""

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
    """Make the communicators of a simulated job of ``size`` ranks, in rank order."""
    world = _World(size)
    return [ThreadCommunicator(world, rank) for rank in range(size)]


def run_ranks(size: int, work: Callable[[ThreadCommunicator], Result], timeout: float = 60.0) -> list[Result]:
    """Run ``work(communicator)`` on ``size`` threads and return the results in rank order.

    If a rank raises, the others are cancelled, and its exception is raised here.

    Raises:
        TimeoutError: ranks are not done after ``timeout`` seconds.
    """
    return run_all(thread_world(size), work, timeout)


def run_all(
    communicators: Sequence[AnyCommunicator], work: Callable[[AnyCommunicator], Result], timeout: float = 60.0
) -> list[Result]:
    """Do what `run_ranks` does, with given communicators of all ranks of a world."""
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


class _Sent:
    """A message that was copied when it was sent, and is done."""

    def Test(self) -> bool:
        return True


class _Expected:
    """A message to receive."""

    def __init__(self, part: Bytes, box: deque[Bytes]) -> None:
        self._part, self._box, self._arrived = part, box, False

    def Test(self) -> bool:
        if not self._arrived and self._box:
            self._part[...] = self._box.popleft()
            self._arrived = True
        return self._arrived


class _Network:
    """Messages between the ranks of one process, and the bytes sent between each two of them."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int], deque[Bytes]] = {}
        self.carried: dict[tuple[int, int], int] = {}
        self.lock = threading.Lock()

    def box(self, source: int, target: int) -> deque[Bytes]:
        with self.lock:
            return self.boxes.setdefault((source, target), deque())


class _ThreadTransport:
    """One rank's `hvdgrab.comm.hierarchical.Transport`."""

    def __init__(self, network: _Network, rank: int) -> None:
        self._network, self._rank = network, rank

    def send(self, part: Bytes, rank: int) -> _Sent:
        self._network.box(self._rank, rank).append(part.copy())
        with self._network.lock:
            self._network.carried[self._rank, rank] = self._network.carried.get((self._rank, rank), 0) + part.nbytes
        return _Sent()

    def receive(self, part: Bytes, rank: int) -> _Expected:
        return _Expected(part, self._network.box(rank, self._rank))

    def progress(self) -> None:
        """Do nothing: messages arrive at once."""


class ThreadNodes:
    """A simulated cluster whose ranks are threads, with ``communicators`` in rank order.

    Args:
        nodes: the ranks of every node, together 0 … W − 1.
        slots: number of slots of every node's window.
        slot_bytes: size of each slot.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], slots: int = 4, slot_bytes: int = 4096) -> None:
        self.topology = Topology(tuple(map(tuple, nodes)), tuple(f"node{number}" for number in range(len(nodes))))
        self._network, cancelled = _Network(), threading.Event()
        memories = [np.zeros(window_bytes(len(ranks), slots, slot_bytes), dtype=np.uint8) for ranks in nodes]

        def join(flat: ThreadCommunicator) -> HierarchicalCommunicator:
            node = self.topology.node_of[flat.rank]
            ranks = self.topology.nodes[node]
            window = NodeWindow(memories[node], len(ranks), ranks.index(flat.rank), slots, slot_bytes, lambda: None)
            transport = _ThreadTransport(self._network, flat.rank)
            return HierarchicalCommunicator(flat, self.topology, window, transport, Waiting(flat.rank, cancelled=cancelled))

        self.communicators = [join(flat) for flat in thread_world(self.topology.size)]

    def carried(self, node: int) -> int:
        """Bytes that gathers, allgathers and broadcasts sent to the ranks of a node from other nodes."""
        of = self.topology.node_of
        return sum(count for (source, target), count in self._network.carried.items() if of[target] == node != of[source])


class ThreadLink:
    """One thread's end of a simulated link; made by `thread_links`."""

    def __init__(self, ends: list[ThreadLink], condition: threading.Condition, rank: int, server: int) -> None:
        self._ends, self._condition = ends, condition
        self._arrived: list[Message] = []
        self._cancelled = False
        self.rank, self.server = rank, server

    def send(self, to: int, row: Row, body: Body = EMPTY) -> None:
        """See `Link.send`."""
        with self._condition:
            self._check()
            self._ends[to]._arrived.append(Message(self.rank, row.copy(), body.copy()))
            self._condition.notify_all()

    def receive(self, sender: int | None = None) -> Message:
        """See `Link.receive`."""
        with self._condition:
            while True:
                self._check()
                for number, message in enumerate(self._arrived):
                    if sender in (None, message.sender):
                        return self._arrived.pop(number)
                self._condition.wait()

    def cancel(self) -> None:
        """See `Link.cancel`."""
        with self._condition:
            self._cancelled = True
            self._condition.notify_all()

    def _check(self) -> None:
        if self._cancelled:
            raise CommunicatorClosed(f"rank {self.rank}: the link to the server is closed")


def thread_links(size: int) -> list[ThreadLink]:
    """Make the ends of a link between ``size`` simulated ranks and a server, in the order of their numbers."""
    ends: list[ThreadLink] = []
    condition = threading.Condition()
    ends.extend(ThreadLink(ends, condition, number, size) for number in range(size + 1))
    return ends

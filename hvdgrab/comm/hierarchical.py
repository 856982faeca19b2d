"""Communication in two levels: within a node through shared memory, between nodes from one rank of each to one of the others.

A payload crosses the network once for a node, not once for a rank: an allgather of m bytes on N nodes of L ranks brings
(N − 1)·L·m bytes into a node, L times less than if every rank sent to every other.  Each node has a leader, which alone talks to
other nodes: it sends the bytes of the node's ranks from shared memory, and receives into it, where all of them read.

A call is cut into steps that follow each other through the window's slots, so that one step is on the network while the next is
written and the one before is read; memory does not grow with the message, and no count comes near 2³¹.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer, Communicator, ForwardingCommunicator, flattened
from hvdgrab.comm.topology import Topology
from hvdgrab.comm.waiting import Waiting
from hvdgrab.comm.window import Bytes, NodeWindow

LONGEST_STEP = 2**17
"""Most bytes of a rank in one step."""

LONGEST_GATHER = 2**15
"""Most bytes of a rank for which a gather goes over the nodes; longer ones go from rank to rank.

The same bytes cross the network either way, the number of messages no longer matters, and meeting in the node costs 5 to 10 % of
the time (measured, 64 KiB to 1 MB over 100 Mbit/s)."""


class Request(Protocol):
    """A message on its way."""

    def Test(self) -> bool:
        """Move the message on; whether it has been sent or received."""


class Transport(Protocol):
    """Messages from rank to rank; those between the same two arrive in their order."""

    def send(self, part: Bytes, rank: int) -> Request:
        """Start sending ``part``, which must not be changed before the request is done."""

    def receive(self, part: Bytes, rank: int) -> Request:
        """Start filling ``part`` with the next message of ``rank``, which has the same length."""

    def progress(self) -> None:
        """Move on whatever is on its way."""


class HierarchicalCommunicator(ForwardingCommunicator):
    """Gathers, allgathers and broadcasts over nodes; leaves everything else to a flat communicator of the same ranks.

    Every block of an `alltoall` has one receiver, so that nothing could be saved between nodes.

    Args:
        flat: of the same ranks.
        topology: the nodes.
        window: the node's shared memory; of the same number and size of slots on all nodes.
        transport: between the leaders of nodes.
        waiting: shared with ``flat``, so that cancelling one ends both.
    """

    def __init__(
        self, flat: Communicator, topology: Topology, window: NodeWindow, transport: Transport, waiting: Waiting
    ) -> None:
        super().__init__(flat)
        self._node = _Node(flat.rank, topology, window, transport, waiting)
        self._waiting = waiting
        self._steps = 0
        """Steps of all calls so far: the same on all ranks."""

    @property
    def waiting_for(self) -> list[int]:
        """See `Communicator.waiting_for`."""
        return self._waiting.peers

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.gather`: a node's rows reach the root in one message, unless they are long."""
        if send.nbytes > LONGEST_GATHER:
            super().gather(send, receive, root)
        else:
            self._collect("gather", send, receive, root)

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.allgather`."""
        self._collect("allgather", send, receive, None)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """See `Communicator.broadcast`: from node to node along a binomial tree, and in a node through its memory."""
        self._waiting.begin()
        data = _as_bytes(buffer)
        call = _Broadcast(root, data, *self._node.family(root))
        cut = self._cut(data.size, min(LONGEST_STEP, self._node.window.slot_bytes))
        self._run([_BroadcastStep(self._node, number, part, call) for number, part in cut])

    def cancel(self) -> None:
        """See `Communicator.cancel`."""
        self._waiting.cancel()
        super().cancel()

    def close(self) -> None:
        """Forget the window.  It is not freed: that is collective, and other ranks may be gone."""
        self._waiting.cancel()
        super().close()

    def _collect(self, what: str, send: Buffer, receive: Buffer | None, root: int | None) -> None:
        """Bring all rows to ``root``, or to every rank if it is None."""
        self._waiting.begin()
        node, data = self._node, _as_bytes(send)
        rows = None if receive is None else _rows_as_bytes(receive)
        call = _Collection(what, root, data, rows, *node.partners(root, receives=rows is not None))
        cut = self._cut(data.size, min(LONGEST_STEP, node.window.slot_bytes // self.size))
        self._run([_CollectionStep(node, number, part, call) for number, part in cut])

    def _cut(self, count: int, length: int) -> Iterator[tuple[int, slice]]:
        """Cut ``count`` bytes into steps of ``length``: their numbers, which go on from call to call, and their parts."""
        for start in range(0, count, length):
            yield self._steps, slice(start, min(count, start + length))
            self._steps += 1

    def _run(self, steps: Sequence[Step]) -> None:
        """Begin every step several steps before it is finished."""
        depth = self._node.window.slots // 2
        for ahead in range(len(steps) + depth):
            if ahead < len(steps):
                steps[ahead].begin()
            if ahead >= depth:
                steps[ahead - depth].finish()


class _Node:
    """What one rank sees of its node, and how it waits for the ranks there.

    Args:
        rank: this one.
        topology, window, transport, waiting: see `HierarchicalCommunicator`.
    """

    def __init__(self, rank: int, topology: Topology, window: NodeWindow, transport: Transport, waiting: Waiting) -> None:
        self.rank, self.topology, self.window, self.transport = rank, topology, window, transport
        self._waiting = waiting
        self.number = topology.node_of[rank]
        self.ranks = topology.nodes[self.number]
        self._order = np.array([rank for ranks in topology.nodes for rank in ranks])
        """Ranks in the order of their rows in a slot: node after node."""
        self._sorted = bool((np.diff(self._order) > 0).all())
        ends = np.cumsum([len(ranks) for ranks in topology.nodes]).tolist()
        self._blocks = list(zip([0, *ends], ends))  # noqa: B905 - the last end begins nothing
        """First and last row, exclusive, of every node."""
        self.row = int(np.flatnonzero(self._order == rank)[0])
        """This rank's row in a slot."""

    def leads(self, root: int | None) -> bool:
        """Whether this rank is its node's leader in a call with this root."""
        return self.rank == self.topology.leader(self.number, root)

    def partners(self, root: int | None, receives: bool) -> tuple[list[tuple[int, int]], list[int]]:
        """(node, its leader) of each node whose rows this rank receives, and the leaders to whom it sends its own node's.

        Both are empty on ranks that do not lead their node.

        Args:
            root: receives all rows; None: every rank does.
            receives: whether this rank is one of the receivers.
        """
        if not self.leads(root):
            return [], []
        others = [(node, self.topology.leader(node, root)) for node in range(len(self.topology.nodes)) if node != self.number]
        goal = None if root is None else self.topology.node_of[root]
        return (others if receives else []), [leader for node, leader in others if goal in (None, node)]

    def family(self, root: int) -> tuple[int | None, list[int]]:
        """From whom this rank receives a broadcast, and to whom it sends it: a binomial tree of the nodes, the root's first.

        Ranks that do not lead their node have neither.
        """
        nodes, topology = len(self.topology.nodes), self.topology
        if not self.leads(root):
            return None, []
        origin = topology.node_of[root]
        place = (self.number - origin) % nodes
        lowest = place & -place if place else 1 << (nodes - 1).bit_length()
        steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
        children = [topology.leader((origin + place + step) % nodes, root) for step in steps if place + step < nodes]
        return topology.leader((origin + place - lowest) % nodes, root) if place else None, children

    def rows_of(self, slot: NDArray[np.uint8], node: int) -> Bytes:
        """The rows of a node in a slot (size, length), as one run of bytes."""
        first, last = self._blocks[node]
        return slot[first:last].reshape(-1)

    def read(self, target: NDArray[np.uint8], slot: Bytes) -> None:
        """Copy a slot's rows into ``target`` (size, length), which is ordered by rank."""
        rows = slot[: target.size].reshape(target.shape)
        if self._sorted:
            target[...] = rows
        else:
            target[self._order] = rows

    def until_free(self, step: int, what: str) -> None:
        """Wait until no rank of the node needs the step's slot for an earlier step."""
        self._until_all(self.window.done, step - self.window.slots, what)

    def until_written(self, step: int, what: str) -> None:
        """Wait until every rank of the node has written its part of the step."""
        self._until_all(self.window.wrote, step, what)

    def until_ready(self, step: int, root: int | None, what: str) -> None:
        """Wait until the node's leader has everything of the step that comes from other nodes."""
        local = self.ranks.index(self.topology.leader(self.number, root))
        self._until(partial(self.window.reached, self.window.ready, step, local), what, lambda: [local])

    def complete(self, request: Request, what: str, peer: int) -> None:
        """Wait until a message from or to ``peer`` has been received or sent."""
        self._waiting.until(request.Test, what, [peer])

    def _until_all(self, counter: NDArray[np.int64], step: int, what: str) -> None:
        self._until(partial(self.window.reached, counter, step), what, partial(self.window.behind, counter, step))

    def _until(self, done: Callable[[], bool], what: str, missing: Callable[[], list[int]]) -> None:
        """Wait for ranks of this node; ``missing`` gives their local numbers."""
        if done():
            return

        def moved_on() -> bool:
            self.transport.progress()
            self._waiting.peers = [self.ranks[local] for local in missing()]
            return done()

        self._waiting.until(moved_on, what)


@dataclass
class Step:
    """One step of a call on this rank; several steps are between `begin` and `finish` at a time."""

    node: _Node
    number: int
    """Counted over all calls; it decides the slot."""
    part: slice
    """Of the bytes of a rank's payload."""

    def begin(self) -> None:
        """Put what this rank has into the slot, and start messages."""
        raise NotImplementedError

    def finish(self) -> None:
        """Wait for what others send, read it, and release the slot."""
        raise NotImplementedError


@dataclass(frozen=True)
class _Collection:
    """A gather or an allgather, as this rank sees it."""

    what: str
    root: int | None
    """Receives all rows; None: every rank does."""
    data: Bytes
    """(bytes,) what this rank sends."""
    rows: NDArray[np.uint8] | None
    """(size, bytes) what it receives."""
    sources: list[tuple[int, int]]
    """See `_Node.partners`."""
    targets: list[int]


@dataclass
class _CollectionStep(Step):
    """One step of a gather or an allgather."""

    call: _Collection
    incoming: list[tuple[Request, int]] = field(default_factory=list)
    outgoing: list[tuple[Request, int]] = field(default_factory=list)

    def begin(self) -> None:
        """See `Step.begin`; a leader first waits for what its node's ranks write."""
        node, call, window = self.node, self.call, self.node.window
        length = self.part.stop - self.part.start
        slot = window.slot(self.number)[: node.topology.size * length].reshape(node.topology.size, length)
        node.until_free(self.number, call.what)
        self.incoming = [(node.transport.receive(node.rows_of(slot, other), leader), leader) for other, leader in call.sources]
        slot[node.row] = call.data[self.part]
        window.advance(window.wrote, self.number)
        if node.leads(call.root):
            node.until_written(self.number, call.what)
        own = node.rows_of(slot, node.number)
        self.outgoing = [(node.transport.send(own, leader), leader) for leader in call.targets]

    def finish(self) -> None:
        """See `Step.finish`."""
        node, call, window = self.node, self.call, self.node.window
        for request, leader in self.incoming:
            node.complete(request, call.what, leader)
        if call.root is None and node.leads(None):
            window.advance(window.ready, self.number)
        elif call.root is None:
            node.until_ready(self.number, None, call.what)
        if call.rows is not None:
            node.read(call.rows[:, self.part], window.slot(self.number))
        for request, leader in self.outgoing:
            node.complete(request, call.what, leader)
        window.advance(window.done, self.number)


@dataclass(frozen=True)
class _Broadcast:
    """A broadcast, as this rank sees it."""

    root: int
    data: Bytes
    """(bytes,) sent on the root, received elsewhere."""
    parent: int | None
    """See `_Node.family`."""
    children: list[int]


@dataclass
class _BroadcastStep(Step):
    """One step of a broadcast."""

    call: _Broadcast
    incoming: Request | None = None

    def begin(self) -> None:
        """See `Step.begin`."""
        node, call, window = self.node, self.call, self.node.window
        slot, chunk = window.slot(self.number), call.data[self.part]
        if node.rank == call.root and len(node.ranks) > 1:
            node.until_free(self.number, "broadcast")
            slot[: chunk.size] = chunk
            window.advance(window.ready, self.number)
        elif call.parent is not None:
            node.until_free(self.number, "broadcast")
            self.incoming = node.transport.receive(slot[: chunk.size], call.parent)

    def finish(self) -> None:
        """See `Step.finish`; a leader also passes the step on to other nodes."""
        node, call, window = self.node, self.call, self.node.window
        chunk = call.data[self.part]
        source = chunk if node.rank == call.root else window.slot(self.number)[: chunk.size]
        if self.incoming is not None and call.parent is not None:
            node.complete(self.incoming, "broadcast", call.parent)
            window.advance(window.ready, self.number)
        elif node.rank != call.root:
            node.until_ready(self.number, call.root, "broadcast")
        sent = [(node.transport.send(source, child), child) for child in call.children]
        if node.rank != call.root:
            chunk[...] = source
        for request, child in sent:
            node.complete(request, "broadcast", child)
        window.advance(window.done, self.number)


def _as_bytes(array: Buffer) -> Bytes:
    return flattened(array).view(np.uint8)


def _rows_as_bytes(array: Buffer) -> Bytes:
    """(rows, bytes) of an array whose rows are contiguous, as a view."""
    if array[:1].size:
        _as_bytes(array[0, ...])
    count = int(np.prod(array.shape[1:], dtype=np.int64))
    rows = np.lib.stride_tricks.as_strided(array, (len(array), count), (array.strides[0], array.itemsize))
    return rows.view(np.uint8)

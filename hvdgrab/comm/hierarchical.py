"""Communication in two levels: within a node through shared memory, between nodes from one rank of each to one of the others.

A payload crosses the network once for a node, not once for a rank: an allgather of m bytes on N nodes of L ranks brings
(N − 1)·L·m bytes into a node, where ranks that send to ranks bring L times as many.  Ranks put their bytes where the one that
speaks for the node sends them from; what arrives is read by all from where it was received.

Long messages are cut into steps that follow each other through the window's slots, so that a step is on the network while the
next is written and the one before is read; memory does not grow with the message, and no count comes near 2³¹.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer, Communicator, ForwardingCommunicator
from hvdgrab.comm.topology import Topology
from hvdgrab.comm.waiting import Waiting
from hvdgrab.comm.window import NodeWindow

LONGEST_STEP = 2**17
"""Most bytes of a rank in one step."""

LONGEST_GATHER = 2**15
"""Bytes of a rank beyond which a gather goes from rank to rank: the same bytes cross the network either way, fewer messages are
of no weight any more, and the meeting in the node costs 5 to 10 % of the time (measured, 64 KiB to 1 MB over 100 Mbit/s)."""

Bytes = NDArray[np.uint8]


class Request(Protocol):
    """Something on its way."""

    def Test(self) -> bool:
        """Whether it has been sent or received; moves it on."""


class Transport(Protocol):
    """Messages from rank to rank; those between the same two arrive in their order."""

    def send(self, part: Bytes, rank: int) -> Request:
        """Start sending ``part``, which must not be changed before the request is done."""

    def receive(self, part: Bytes, rank: int) -> Request:
        """Start filling ``part`` with the next message of ``rank``, which has the same length."""

    def progress(self) -> None:
        """Move on whatever is on its way."""


class HierarchicalCommunicator(ForwardingCommunicator):
    """Gathers and broadcasts over nodes; everything else is left to a flat communicator of the same ranks: every block of an
    `alltoall` has one receiver, so that there is nothing to save between nodes.

    Args:
        flat: of the same ranks.
        topology: the nodes.
        window: the node's shared memory; of the same number and size of slots on all nodes.
        transport: between the ranks that speak for their nodes.
        waiting: shared with ``flat``, so that cancelling one ends both.
    """

    def __init__(
        self, flat: Communicator, topology: Topology, window: NodeWindow, transport: Transport, waiting: Waiting
    ) -> None:
        super().__init__(flat)
        self._topology, self._window, self._transport, self._waiting = topology, window, transport, waiting
        self._node = topology.node_of[self.rank]
        self._locals = topology.nodes[self._node]
        self._order = np.array([rank for ranks in topology.nodes for rank in ranks])
        """Ranks in the order of their rows in a slot: node after node."""
        self._sorted = bool((np.diff(self._order) > 0).all())
        ends = np.cumsum([len(ranks) for ranks in topology.nodes]).tolist()
        self._blocks = list(zip([0, *ends], ends))  # noqa: B905 - the last end begins nothing
        """First and last row, exclusive, of every node."""
        self._row = int(np.flatnonzero(self._order == self.rank)[0])
        self._step = 0
        """Steps of all calls so far: the same on all ranks."""
        self._depth = window.slots // 2

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
        parent, children = self._family(root)
        pending: dict[int, Request] = {}

        def begin(step: int, part: slice) -> None:
            slot, chunk = self._window.slot(step), data[part]
            if self.rank == root and len(self._locals) > 1:
                self._until_free(step, "broadcast")
                slot[: chunk.size] = chunk
                self._window.advance(self._window.ready, step)
            elif parent is not None:
                self._until_free(step, "broadcast")
                pending[step] = self._transport.receive(slot[: chunk.size], parent)

        def finish(step: int, part: slice) -> None:
            chunk = data[part]
            source = chunk if self.rank == root else self._window.slot(step)[: chunk.size]
            if parent is not None:
                self._complete([pending.pop(step)], "broadcast", parent)
                self._window.advance(self._window.ready, step)
            elif self.rank != root:
                self._until_ready(step, root, "broadcast")
            sent = [(self._transport.send(source, child), child) for child in children]
            if self.rank != root:
                chunk[...] = source
            for request, child in sent:
                self._complete([request], "broadcast", child)
            self._window.advance(self._window.done, step)

        self._run(data.size, min(LONGEST_STEP, self._window.slot_bytes), begin, finish)

    def cancel(self) -> None:
        """See `Communicator.cancel`."""
        self._waiting.cancel()
        super().cancel()

    def close(self) -> None:
        """Forget the window.  It is not freed: that is collective, and other ranks may be gone."""
        self._waiting.cancel()
        super().close()

    def _collect(self, what: str, send: Buffer, receive: Buffer | None, root: int | None) -> None:
        """Bring all rows to ``root``, or to everybody."""
        self._waiting.begin()
        data = _as_bytes(send)
        rows = None if receive is None else _rows_as_bytes(receive)
        topology, window = self._topology, self._window
        others = [node for node in range(len(topology.nodes)) if node != self._node]
        speaks = self.rank == topology.leader(self._node, root)
        sources = others if speaks and rows is not None else []
        targets = [node for node in others if root is None or node == topology.node_of[root]] if speaks else []
        incoming: dict[int, list[tuple[Request, int]]] = {}
        outgoing: dict[int, list[tuple[Request, int]]] = {}

        def begin(step: int, part: slice) -> None:
            length = part.stop - part.start
            slot = window.slot(step)[: self.size * length].reshape(self.size, length)
            self._until_free(step, what)
            incoming[step] = [
                (self._transport.receive(self._block(slot, node), leader), leader)
                for node, leader in ((node, topology.leader(node, root)) for node in sources)
            ]
            slot[self._row] = data[part]
            window.advance(window.wrote, step)
            if speaks:
                self._until(partial(window.reached, window.wrote, step), what, partial(window.behind, window.wrote, step))
            leaders = [topology.leader(node, root) for node in targets]
            outgoing[step] = [(self._transport.send(self._block(slot, self._node), leader), leader) for leader in leaders]

        def finish(step: int, part: slice) -> None:
            for request, leader in incoming.pop(step):
                self._complete([request], what, leader)
            if root is None and speaks:
                window.advance(window.ready, step)
            elif root is None:
                self._until_ready(step, None, what)
            if rows is not None:
                self._read(rows[:, part], window.slot(step))
            for request, leader in outgoing.pop(step):
                self._complete([request], what, leader)
            window.advance(window.done, step)

        self._run(data.size, min(LONGEST_STEP, window.slot_bytes // self.size), begin, finish)

    def _run(self, count: int, length: int, begin: Callable[[int, slice], None], finish: Callable[[int, slice], None]) -> None:
        """Cut ``count`` bytes into steps of ``length``; each is begun several steps before it is finished."""
        parts = [slice(start, min(count, start + length)) for start in range(0, count, length)]
        first, self._step = self._step, self._step + len(parts)
        for ahead in range(len(parts) + self._depth):
            if ahead < len(parts):
                begin(first + ahead, parts[ahead])
            behind = ahead - self._depth
            if 0 <= behind < len(parts):
                finish(first + behind, parts[behind])

    def _family(self, root: int) -> tuple[int | None, list[int]]:
        """Whom this rank receives a broadcast from and sends it to: of a binomial tree of the nodes, the root's first.

        Ranks that do not speak for their node have neither.
        """
        nodes, topology = len(self._topology.nodes), self._topology
        if self.rank != topology.leader(self._node, root):
            return None, []
        origin = topology.node_of[root]
        place = (self._node - origin) % nodes
        lowest = place & -place if place else 1 << (nodes - 1).bit_length()
        steps = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
        children = [topology.leader((origin + place + step) % nodes, root) for step in steps if place + step < nodes]
        return topology.leader((origin + place - lowest) % nodes, root) if place else None, children

    def _block(self, slot: NDArray[np.uint8], node: int) -> Bytes:
        """The rows of a node in a slot (size, length), as one run of bytes."""
        first, last = self._blocks[node]
        return slot[first:last].reshape(-1)

    def _read(self, target: NDArray[np.uint8], slot: Bytes) -> None:
        """Copy a slot's rows into ``target`` (size, length), which is ordered by rank."""
        rows = slot[: target.size].reshape(target.shape)
        if self._sorted:
            target[...] = rows
        else:
            target[self._order] = rows

    def _until(self, done: Callable[[], bool], what: str, missing: Callable[[], list[int]]) -> None:
        """Wait for ranks of this node."""
        if done():
            return

        def moved_on() -> bool:
            self._transport.progress()
            self._waiting.peers = [self._locals[local] for local in missing()]
            return done()

        self._waiting.until(moved_on, what)

    def _until_free(self, step: int, what: str) -> None:
        window = self._window
        self._until(partial(window.is_free, step), what, partial(window.behind, window.done, step - window.slots))

    def _until_ready(self, step: int, root: int | None, what: str) -> None:
        window, leader = self._window, self._topology.leader(self._node, root)
        local = self._locals.index(leader)
        self._until(partial(window.reached, window.ready, step, local), what, lambda: [local])

    def _complete(self, requests: Sequence[Request], what: str, peer: int) -> None:
        self._waiting.until(lambda: all(map(operator.methodcaller("Test"), requests)), what, [peer])


def _as_bytes(array: Buffer) -> Bytes:
    flat = array.reshape(-1)
    if not np.shares_memory(flat, array) and array.size:
        raise ValueError("a buffer on the wire must be contiguous")
    return flat.view(np.uint8)


def _rows_as_bytes(array: Buffer) -> Bytes:
    """(rows, bytes) of an array whose rows are contiguous, as a view."""
    if array[:1].size:
        _as_bytes(array[0, ...])
    count = int(np.prod(array.shape[1:], dtype=np.int64))
    rows = np.lib.stride_tricks.as_strided(array, (len(array), count), (array.strides[0], array.itemsize))
    return rows.view(np.uint8)

"""Hierarchical communication between ranks that are threads of one process: any cluster can be made up."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from hvdgrab.comm.hierarchical import Bytes, HierarchicalCommunicator
from hvdgrab.comm.threads import ThreadCommunicator, thread_world
from hvdgrab.comm.topology import Topology
from hvdgrab.comm.waiting import Waiting
from hvdgrab.comm.window import NodeWindow, window_bytes


class _Sent:
    """A message that was copied when it was sent."""

    def Test(self) -> bool:
        return True


class _Expected:
    """A message that is still to come."""

    def __init__(self, part: Bytes, box: deque[Bytes]) -> None:
        self._part, self._box, self._arrived = part, box, False

    def Test(self) -> bool:
        if not self._arrived and self._box:
            self._part[...] = self._box.popleft()
            self._arrived = True
        return self._arrived


class _Post:
    """Messages between the ranks of one process, and how many bytes each rank was sent by each."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int], deque[Bytes]] = {}
        self.carried: dict[tuple[int, int], int] = {}
        self.lock = threading.Lock()

    def box(self, source: int, target: int) -> deque[Bytes]:
        with self.lock:
            return self.boxes.setdefault((source, target), deque())


class _Desk:
    """One rank's `hvdgrab.comm.hierarchical.Transport`."""

    def __init__(self, post: _Post, rank: int) -> None:
        self._post, self._rank = post, rank

    def send(self, part: Bytes, rank: int) -> _Sent:
        self._post.box(self._rank, rank).append(part.copy())
        with self._post.lock:
            self._post.carried[self._rank, rank] = self._post.carried.get((self._rank, rank), 0) + part.nbytes
        return _Sent()

    def receive(self, part: Bytes, rank: int) -> _Expected:
        return _Expected(part, self._post.box(rank, self._rank))

    def progress(self) -> None:
        """There is nothing to move."""


class ThreadNodes:
    """A made-up cluster whose ranks are threads; ``communicators`` in rank order.

    Args:
        nodes: the ranks of every node; all ranks together are 0 … W − 1.
        slots: of every node's window.
        slot_bytes: size of each.
    """

    def __init__(self, nodes: Sequence[Sequence[int]], slots: int = 4, slot_bytes: int = 4096) -> None:
        self.topology = Topology(tuple(map(tuple, nodes)), tuple(f"node{number}" for number in range(len(nodes))))
        self._post, cancelled = _Post(), threading.Event()
        memories = [np.zeros(window_bytes(len(ranks), slots, slot_bytes), dtype=np.uint8) for ranks in nodes]

        def join(flat: ThreadCommunicator) -> HierarchicalCommunicator:
            node = self.topology.node_of[flat.rank]
            ranks = self.topology.nodes[node]
            window = NodeWindow(memories[node], len(ranks), ranks.index(flat.rank), slots, slot_bytes, lambda: None)
            desk = _Desk(self._post, flat.rank)
            return HierarchicalCommunicator(flat, self.topology, window, desk, Waiting(flat.rank, cancelled=cancelled))

        self.communicators = [join(flat) for flat in thread_world(self.topology.size)]

    def carried(self, node: int) -> int:
        """Bytes that the ranks of a node were sent from other nodes by gathers, allgathers and broadcasts."""
        of = self.topology.node_of
        return sum(count for (source, target), count in self._post.carried.items() if of[target] == node != of[source])

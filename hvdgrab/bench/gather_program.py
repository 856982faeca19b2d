"""The program that `hvdgrab-bench gather` starts on every rank.  On a cluster, start it with the cluster's own launcher:

    mpirun … python -m hvdgrab.bench.gather_program --sizes 4096,65536 --calls 20

Rank 0 writes one JSON document to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hvdgrab.bench.gather import OPERATIONS, Card, all_cards
from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.connect import Opened, open_both

ALGORITHMS = ("flat", "hierarchical")
_SETTLING = 0.05
"""Seconds in which the last acknowledgements pass the cards."""


@dataclass
class Case:
    """One operation with a payload of so many bytes a rank."""

    operation: str
    size: int
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        everyone = self.operation in ("allgather", "alltoall") or self.rank == 0
        self.rows = np.zeros((self.ranks, self.size), dtype=np.uint8) if everyone else None
        shape = (self.ranks, self.size) if self.operation == "alltoall" else (self.size,)
        self.own = np.zeros(shape, dtype=np.uint8)

    def fill(self, call: int) -> None:
        """Fill in contents that differ between ranks, places and calls."""
        self.own[...] = self.contents(self.rank, call)
        if self.operation == "alltoall":
            self.own += np.arange(self.ranks, dtype=np.uint8)[:, None]
        if self.rows is not None:
            self.rows[...] = 255

    def contents(self, rank: int, call: int) -> NDArray[np.uint8]:
        """What a rank sends: (size,) uint8."""
        return (np.arange(self.size, dtype=np.int64) * 7 + rank * 31 + call * 13).astype(np.uint8)

    def run(self, communicator: Communicator) -> None:
        """Make one call."""
        if self.operation == "gather":
            communicator.gather(self.own, self.rows, 0)
        elif self.operation == "broadcast":
            communicator.broadcast(self.own, 0)
        elif self.rows is not None:
            getattr(communicator, self.operation)(self.own, self.rows)

    def wrong(self, call: int) -> int:
        """Count the bytes that differ from what was sent."""
        if self.operation == "broadcast":
            return int((self.own != self.contents(0, call)).sum())
        if self.rows is None:
            return 0
        shift = self.rank if self.operation == "alltoall" else 0
        expected = np.stack([self.contents(rank, call) + np.uint8(shift) for rank in range(self.ranks)])
        return int((self.rows != expected).sum())


def measure(
    world: MPI.Intracomm, opened: Opened, algorithms: list[str], operation: str, size: int, calls: int
) -> list[dict[str, object]]:
    """Measure one row for each algorithm, with calls in turns; the rows are equal on all ranks."""
    case = Case(operation, size, world.Get_rank(), world.Get_size())
    communicators: dict[str, Communicator] = {name: getattr(opened, name) for name in algorithms}
    seconds: dict[str, list[float]] = {name: [] for name in communicators}
    wrong = dict.fromkeys(communicators, 0)
    for call in range(calls + 1):
        for name, communicator in communicators.items():
            case.fill(call)
            world.Barrier()
            began = time.perf_counter()
            case.run(communicator)
            seconds[name].append(time.perf_counter() - began)
            wrong[name] += case.wrong(call)
    rows = []
    for name, communicator in communicators.items():
        received, sent = traffic(world, partial(case.run, communicator), calls)
        slowest = np.empty(calls)
        world.Allreduce(np.array(seconds[name][1:]), slowest, op=MPI.MAX)  # the first call opens connections
        low, median, high = (1e3 * float(value) for value in np.percentile(slowest, [0, 50, 95]))
        rows.append({
            "operation": operation, "algorithm": name, "bytes": size, "min_ms": low, "median_ms": median, "p95_ms": high,
            "node_in": received, "node_out": sent, "least_in": least(opened, operation, size),
            "wrong": world.allreduce(wrong[name]),
        })  # fmt: skip
    return rows


def traffic(world: MPI.Intracomm, run: Callable[[], None], calls: int) -> tuple[float, float]:
    """Bytes a call received and sent by the cards of the busiest node, over calls that follow each other at once."""
    before = _settled(world)
    for _ in range(calls):
        run()
    moved = _settled(world) - before
    received, sent = (world.allreduce(count, op=MPI.MAX) for count in (moved.received, moved.sent))
    return received / calls, sent / calls


def least(opened: Opened, operation: str, size: int) -> int:
    """Fewest payload bytes that the node that needs most must receive."""
    nodes = opened.topology.nodes
    ranks = opened.topology.size
    outside = {
        "gather": ranks - len(nodes[0]),
        "allgather": ranks - min(map(len, nodes)),
        "broadcast": 1,
        "alltoall": max(len(node) * (ranks - len(node)) for node in nodes),
    }
    return size * outside[operation] if len(nodes) > 1 else 0


def _settled(world: MPI.Intracomm) -> Card:
    world.Barrier()
    time.sleep(_SETTLING)
    card = all_cards(Path("/proc/self/net/dev"))
    world.Barrier()
    return card


def main(arguments: list[str] | None = None) -> None:
    """Run the program; see the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=_numbers, default=[4096, 65536])
    parser.add_argument("--operations", type=lambda text: text.split(","), default=list(OPERATIONS))
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS))
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--node-size", type=int)
    args = parser.parse_args(arguments)
    world: Any = MPI.COMM_WORLD
    opened = open_both(world, args.node_size)
    cases = [(operation, size) for operation in args.operations for size in args.sizes]
    rows = [row for case in cases for row in measure(world, opened, args.algorithms, *case, args.calls)]
    if world.Get_rank() == 0:
        version = MPI.Get_library_version().splitlines()[0].strip("\0")
        json.dump({"topology": opened.topology.text(), "mpi": version, "rows": rows}, sys.stdout)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()

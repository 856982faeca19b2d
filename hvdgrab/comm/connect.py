"""Connecting the ranks of a run over MPI: nodes, shared memory, and the choice between flat and hierarchical.

All of this is collective, and all ranks decide alike, because they decide from the same gathered facts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hvdgrab.comm.calibration import ChoosingCommunicator, calibrate
from hvdgrab.comm.communicator import Communicator, SerialCommunicator, broadcast_bytes, gather_bytes
from hvdgrab.comm.hierarchical import HierarchicalCommunicator
from hvdgrab.comm.mpi import MPICommunicator
from hvdgrab.comm.topology import Place, Topology, check_shared_memory, find_topology, this_place
from hvdgrab.comm.window import NodeWindow, window_bytes
from hvdgrab.config import CommunicationConfig
from hvdgrab.errors import WorldError

if TYPE_CHECKING:
    from mpi4py import MPI

SLOTS = 8
"""Slots of a node's window: the most steps of a message, or small messages, on their way at a time."""

_SMALLEST_SLOT, _LARGEST_SLOT, _SLOT_PER_RANK = 2**19, 2**24, 2**14


def say(text: str) -> None:
    """Print a line on standard error; `open_communicator` calls this on rank 0."""
    print(f"hvdgrab: {text}", file=sys.stderr, flush=True)


def open_communicator(parent: MPI.Intracomm, settings: CommunicationConfig, tell: Callable[[str], None] = say) -> Communicator:
    """Open the communicator of a run; collective over ``parent``.

    Args:
        parent: usually ``MPI.COMM_WORLD``; it is duplicated.
        settings: the ``communication:`` section.
        tell: called on rank 0 with one line: the nodes and the choice.

    Raises:
        WorldError: on every rank, if MPI's view of the nodes cannot be right, or shared memory is too small for the algorithm.
    """
    if parent.Get_size() == 1:
        return SerialCommunicator()
    flat = MPICommunicator(parent)
    places = all_places(flat)
    chosen: Communicator
    if settings.algorithm == "flat":
        chosen, how = flat, _flat_text(places, settings.node_size)
    else:
        topology = find_topology(places, settings.node_size)
        chosen, how = _choose(flat, places, topology, settings.algorithm)
        how = f"{topology.text()}; {how}"
    if flat.rank == 0:
        tell(how)
    return chosen


@dataclass(frozen=True)
class Opened:
    """Both communicators of a world, for comparisons."""

    topology: Topology
    flat: MPICommunicator
    hierarchical: HierarchicalCommunicator


def open_both(parent: MPI.Intracomm, node_size: int | None = None) -> Opened:
    """Open a flat and a hierarchical communicator of the same ranks; collective, raises as `open_communicator` does."""
    flat = MPICommunicator(parent)
    places = all_places(flat)
    topology = find_topology(places, node_size)
    if lacking := check_shared_memory(places, topology, _window_bytes(topology)):
        raise WorldError(lacking)
    return Opened(topology, flat, hierarchy(flat, topology, SLOTS, slot_size(flat.size)))


def slot_size(ranks: int) -> int:
    """Bytes of a window's slot for a world of ``ranks``: up to a thousand ranks, a row of a long message has at least 16 KiB."""
    return min(_LARGEST_SLOT, max(_SMALLEST_SLOT, ranks * _SLOT_PER_RANK))


def _flat_text(places: list[Place], node_size: int | None) -> str:
    """Describe the nodes, or what is wrong with them, which does not matter to flat communication."""
    try:
        return f"{find_topology(places, node_size).text()}; flat communication"
    except WorldError as error:
        return f"flat communication; {error}"


def _choose(flat: MPICommunicator, places: list[Place], topology: Topology, algorithm: str) -> tuple[Communicator, str]:
    if topology.flat and algorithm == "auto":
        return flat, "flat communication: every node has one rank"
    if lacking := check_shared_memory(places, topology, _window_bytes(topology)):
        if algorithm == "hierarchical":
            raise WorldError(f"communication.algorithm is hierarchical, but {lacking}")
        return flat, f"flat communication: {lacking}"
    hierarchical = hierarchy(flat, topology, SLOTS, slot_size(flat.size))
    if algorithm == "hierarchical":
        return hierarchical, "hierarchical communication"
    calibration = calibrate(flat, hierarchical)
    return ChoosingCommunicator(flat, hierarchical, calibration), calibration.text()


def _window_bytes(topology: Topology) -> int:
    return window_bytes(max(map(len, topology.nodes)), SLOTS, slot_size(topology.size))


def hierarchy(flat: MPICommunicator, topology: Topology, slots: int, slot_bytes: int) -> HierarchicalCommunicator:
    """Open the hierarchical communicator beside a flat one; collective."""
    ranks = topology.nodes[topology.node_of[flat.rank]]
    local, size = ranks.index(flat.rank), window_bytes(len(ranks), slots, slot_bytes)
    group = flat.group(topology.node_of[flat.rank])
    if len(ranks) == 1:
        flat.barrier()  # matches the barrier of nodes with several ranks
        window = NodeWindow(np.zeros(size, dtype=np.uint8), 1, 0, slots, slot_bytes, lambda: None)
        return HierarchicalCommunicator(flat, topology, window, flat, flat.waiting)
    from mpi4py import MPI

    shared = MPI.Win.Allocate_shared(size if local == 0 else 0, 1, comm=group)
    buffer: Any = shared.Shared_query(0)[0]
    memory = np.frombuffer(buffer, dtype=np.uint8)
    shared.Lock_all(MPI.MODE_NOCHECK)
    if local == 0:
        memory[...] = 0  # write to all of it, so that a /dev/shm that is too small fails now, not in the middle of an epoch
        shared.Sync()
    flat.barrier()
    shared.Sync()
    window = NodeWindow(memory, len(ranks), local, slots, slot_bytes, shared.Sync)
    return HierarchicalCommunicator(flat, topology, window, flat, flat.waiting)


def all_places(flat: MPICommunicator) -> list[Place]:
    """Gather the places of all ranks on every rank; collective."""
    own = this_place(flat.sharing(), flat.size)
    rows = gather_bytes(flat, json.dumps(asdict(own)).encode())
    everyone = None if rows is None else json.dumps([json.loads(row) for row in rows]).encode()
    return [Place(**facts) for facts in json.loads(broadcast_bytes(flat, everyone))]

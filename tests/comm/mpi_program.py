"""Started by mpirun: every check of `tests.comm.checks` on the communicators over MPI that are named as arguments.

Rank 0 writes ``{communicator: {check: [tracebacks]}}`` to standard output.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback

import numpy as np
from mpi4py import MPI

from hvdgrab.comm.calibration import OPERATIONS, SIZES, Calibration, ChoosingCommunicator
from hvdgrab.comm.connect import all_places, hierarchy, open_communicator
from hvdgrab.comm.mpi import MPICommunicator
from hvdgrab.comm.topology import find_topology
from hvdgrab.config import CommunicationConfig
from hvdgrab.errors import CommunicatorClosed
from tests.comm.checks import CHECKS


def cancelled_calls_end(comm) -> None:
    """Last: the communicator is of no use afterwards."""
    if comm.rank == 0:
        threading.Timer(0.3, comm.cancel).start()
        try:
            comm.gather(np.zeros(4), np.zeros((comm.size, 4)), 0)
        except CommunicatorClosed as error:
            assert "closed while gather waited" in str(error)
        else:
            raise AssertionError("the gather ended, though no other rank took part")


def cancelled_notices_are_refused(comm) -> None:
    comm.cancel()
    for call in (comm.notices, lambda: comm.notify(np.zeros(1, dtype=np.int64))):
        try:
            call()
        except CommunicatorClosed as error:
            assert "the communicator is closed" in str(error)
        else:
            raise AssertionError("a cancelled communicator still sends and reads notices")


def waiting_costs_little(comm) -> None:
    """This thread's CPU is what a rank burns beyond Horovod: a twentieth of the wait at most, 0.1 s in 2 s."""
    if comm.rank:
        time.sleep(1.0)
    began = time.thread_time()
    comm.broadcast(np.zeros(1), comm.size - 1)
    assert time.thread_time() - began < 0.05, "a rank that waits for a second must not poll all the time"


def cut(node_size: int | None, slots: int, slot_bytes: int):
    """A hierarchical communicator whose messages need many steps."""
    flat = MPICommunicator(MPI.COMM_WORLD)
    return hierarchy(flat, find_topology(all_places(flat), node_size), slots, slot_bytes)


def mixed():
    """One that changes between flat and hierarchical with operation and size."""
    hierarchical = cut(None, 4, 4096)
    sizes = list(enumerate((8, 100, *SIZES)))
    table = {name: {size: (place + number) % 2 == 0 for place, size in sizes} for number, name in enumerate(OPERATIONS)}
    return ChoosingCommunicator(hierarchical.inner, hierarchical, Calibration(table))


def opened(**settings):
    return open_communicator(MPI.COMM_WORLD, CommunicationConfig(**settings))


COMMUNICATORS = {
    "flat": lambda: MPICommunicator(MPI.COMM_WORLD),
    "flat-chunks": lambda: MPICommunicator(MPI.COMM_WORLD, chunk_elements=3),
    "hierarchical": lambda: opened(algorithm="hierarchical"),
    "steps": lambda: cut(None, 3, 64),
    "halves-steps": lambda: cut(2, 2, 64),
    "halves": lambda: opened(algorithm="hierarchical", node_size=2),
    "mixed": mixed,
    "auto": lambda: opened(algorithm="auto"),
}


def run(name: str) -> dict[str, list[str]]:
    communicator, results = COMMUNICATORS[name](), {}
    waits = [waiting_costs_little] if name in ("flat", "hierarchical") else []
    for check in [*CHECKS, *waits, cancelled_calls_end, cancelled_notices_are_refused]:
        try:
            check(communicator)
            outcome = ""
        except Exception:
            outcome = traceback.format_exc()
        results[check.__name__] = [text for text in MPI.COMM_WORLD.allgather(outcome) if text]
    communicator.close()
    return results


found = {name: run(name) for name in sys.argv[1:]}
if MPI.COMM_WORLD.Get_rank() == 0:
    json.dump(found, sys.stdout)

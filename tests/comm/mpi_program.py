"""Started by mpirun: every check of `tests.comm.checks` on `MPICommunicator`, whole and in chunks of three elements."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback

import numpy as np
from mpi4py import MPI

from hvdgrab.comm.mpi import MPICommunicator
from hvdgrab.errors import CommunicatorClosed
from tests.comm.checks import CHECKS


def cancelled_calls_end(comm: MPICommunicator) -> None:
    """Last: the communicator is of no use afterwards."""
    if comm.rank == 0:
        threading.Timer(0.3, comm.cancel).start()
        try:
            comm.gather(np.zeros(4), np.zeros((comm.size, 4)), 0)
        except CommunicatorClosed as error:
            assert "closed while a gather waited" in str(error)
        else:
            raise AssertionError("the gather ended, though no other rank took part")


def cancelled_notices_are_refused(comm: MPICommunicator) -> None:
    comm.cancel()
    for call in (comm.notices, lambda: comm.notify(np.zeros(1, dtype=np.int64))):
        try:
            call()
        except CommunicatorClosed as error:
            assert "the communicator is closed" in str(error)
        else:
            raise AssertionError("a cancelled communicator still sends and reads notices")


def waiting_costs_little(comm: MPICommunicator) -> None:
    if comm.rank:
        time.sleep(1.0)
    began = time.process_time()
    comm.broadcast(np.zeros(1), comm.size - 1)
    assert time.process_time() - began < 0.3, "a rank that waits for a second must not poll all the time"


results = {}
for chunk in (2**30, 3):
    communicator = MPICommunicator(MPI.COMM_WORLD, chunk_elements=chunk)
    for check in [*CHECKS, waiting_costs_little, cancelled_calls_end, cancelled_notices_are_refused]:
        try:
            check(communicator)
            outcome = ""
        except Exception:
            outcome = traceback.format_exc()
        name = f"{check.__name__}-{'whole' if chunk > 3 else 'chunks'}"
        results[name] = [text for text in MPI.COMM_WORLD.allgather(outcome) if text]
    communicator.close()
if MPI.COMM_WORLD.Get_rank() == 0:
    json.dump(results, sys.stdout)

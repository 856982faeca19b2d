from __future__ import annotations

import json

import numpy as np
import pytest

from hvdgrab.comm.serial import SerialCommunicator
from hvdgrab.comm.threads import run_ranks, thread_world
from hvdgrab.errors import CommunicationError, CommunicatorClosed
from tests.comm.checks import CHECKS
from tests.real import mpirun

MPI_ONLY = ["waiting_costs_little", "cancelled_calls_end", "cancelled_notices_are_refused"]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_threads(check, ranks):
    run_ranks(ranks, check)


@pytest.mark.parametrize("check", CHECKS)
def test_a_single_rank(check):
    check(SerialCommunicator())


@pytest.fixture(scope="module")
def over_mpi() -> dict[str, list[str]]:
    job = mpirun(3, ["-m", "tests.comm.mpi_program"], timeout=120)
    assert job.returncode == 0, job.stderr
    results: dict[str, list[str]] = json.loads(job.stdout)
    return results


@pytest.mark.parametrize("name", [*(check.__name__ for check in CHECKS), *MPI_ONLY])
@pytest.mark.parametrize("size", ["whole", "chunks"])
def test_mpi(over_mpi, name, size):
    assert over_mpi[f"{name}-{size}"] == []


def test_ranks_that_make_different_calls_are_told():
    def work(comm):
        if comm.rank == 1:
            comm.broadcast(np.zeros(2), 0)
        else:
            comm.gather(np.zeros(2), np.zeros((2, 2)), 0)

    with pytest.raises(CommunicationError, match=r"call 0: rank . does \('(gather|broadcast)'"):
        run_ranks(2, work)


def test_a_rank_that_raises_ends_the_others():
    def work(comm):
        if comm.rank == 1:
            raise ValueError("broken")
        comm.broadcast(np.zeros(2), 1)

    with pytest.raises(ValueError, match="broken"):
        run_ranks(3, work)


def test_a_cancelled_world_says_so():
    world = thread_world(2)
    world[1].cancel()
    with pytest.raises(CommunicatorClosed, match="rank 0: closed while call 0"):
        world[0].gather(np.zeros(1), np.zeros((2, 1)), 0)
    with pytest.raises(CommunicatorClosed, match="rank 0: the communicator is closed"):
        world[0].notify(np.zeros(1, dtype=np.int64))
    with pytest.raises(CommunicatorClosed, match="rank 1: the communicator is closed"):
        world[1].notices()


def test_ranks_that_never_come_are_a_timeout():
    def work(comm):
        if comm.rank == 0:
            comm.broadcast(np.zeros(1), 1)

    with pytest.raises((TimeoutError, CommunicatorClosed)):
        run_ranks(2, work, timeout=0.2)

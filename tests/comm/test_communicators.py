from __future__ import annotations

import json

import numpy as np
import pytest

from hvdgrab.comm.communicator import SerialCommunicator
from hvdgrab.comm.simulated import run_ranks, thread_world
from hvdgrab.errors import CommunicationError, CommunicatorClosed
from tests.comm.checks import CHECKS
from tests.hosts import hosts
from tests.real import ROOT, mpirun

MPI_ONLY = ["cancelled_calls_end", "cancelled_notices_are_refused"]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_threads(check, ranks):
    run_ranks(ranks, check)


@pytest.mark.parametrize("check", CHECKS)
def test_a_single_rank(check):
    check(SerialCommunicator())


ON_ONE_HOST = ["flat", "flat-chunks", "hierarchical", "halves", "halves-steps", "mixed", "auto"]
ON_TWO_HOSTS = ["flat", "hierarchical", "steps", "mixed"]


@pytest.fixture(scope="module")
def over_mpi() -> dict[str, dict[str, list[str]]]:
    job = mpirun(4, ["-m", "mpi4py", "-m", "tests.comm.mpi_program", *ON_ONE_HOST], timeout=120)
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout)


@pytest.mark.parametrize("name", [*(check.__name__ for check in CHECKS), *MPI_ONLY])
@pytest.mark.parametrize("communicator", ON_ONE_HOST)
def test_mpi_on_one_host(over_mpi, communicator, name):
    assert over_mpi[communicator][name] == []


@pytest.mark.parametrize("communicator", ["flat", "hierarchical"])
def test_a_rank_that_waits_burns_little(over_mpi, over_hosts, communicator):
    for results in (over_mpi, over_hosts):
        assert results[communicator]["waiting_costs_little"] == []


@pytest.fixture(scope="module")
def over_hosts() -> dict[str, dict[str, list[str]]]:
    with hosts(2, rate="100mbit") as net:
        job = net.mpirun(2, ["-m", "mpi4py", "-m", "tests.comm.mpi_program", *ON_TWO_HOSTS], timeout=120, cwd=ROOT)
    assert job.returncode == 0, job.stderr
    return json.loads(job.stdout)


@pytest.mark.parametrize("name", [*(check.__name__ for check in CHECKS), *MPI_ONLY])
@pytest.mark.parametrize("communicator", ON_TWO_HOSTS)
def test_mpi_on_two_hosts(over_hosts, communicator, name):
    assert over_hosts[communicator][name] == []


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

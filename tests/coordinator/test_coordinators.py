"""One harness for all coordinators: ranks as threads, as processes on one host, and on two hosts with a network in between."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hvdgrab.comm.link import ServedCommunicator
from hvdgrab.comm.simulated import ThreadCommunicator, run_ranks
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.served import take_leave
from tests.coordinator.checks import CHECKS, COORDINATORS, real_numbers_are_balanced_as_well
from tests.coordinator.simulate import Rank, serving
from tests.hosts import hosts
from tests.real import mpirun

PROGRAM = ["-m", "tests.coordinator.mpi_program"]


def run(size: int, check: Any, coordinator: str) -> Any:
    """What the check returns, the same on all ranks."""

    def on_rank(communicator: ThreadCommunicator) -> Any:
        made: list[Rank] = []
        link = None if ends is None else ends[communicator.rank]
        ranks = communicator if link is None else ServedCommunicator(communicator, link)

        def make(gradients: Any, **settings: Any) -> Rank:
            dense = {} if coordinator == "sharded" else {"compression": "none"}
            config = GraBConfig(**{**dense, "coordinator": coordinator, **settings})
            made.append(Rank(ranks, config, gradients[communicator.rank]))
            return made[-1]

        result = check(size, make)
        assert all(rank.session.close() for rank in made)
        if link is not None:
            take_leave(link)
        return result

    with serving(size) if coordinator == "server" else contextlib.nullcontext() as ends:
        results = run_ranks(size, on_rank)
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("size", [1, 3, pytest.param(2, marks=pytest.mark.soak), pytest.param(5, marks=pytest.mark.soak)])
def test_threads_and_all_coordinators_agree(check, size):
    results = {coordinator: run(size, check, coordinator) for coordinator in COORDINATORS}
    if check is not real_numbers_are_balanced_as_well:
        assert all(result == results["designated"] for result in results.values())


def outcome(job: Any) -> dict[str, list[str]]:
    assert job.returncode == 0, job.stderr
    results: dict[str, list[str]] = json.loads(job.stdout)
    return results


@pytest.fixture(scope="module")
def one_host() -> dict[str, list[str]]:
    return outcome(mpirun(3, [*PROGRAM, "flat"], timeout=300))


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[dict[str, list[str]]]:
    with hosts(2, rate="100mbit") as net:
        yield outcome(net.mpirun(2, [*PROGRAM, "hierarchical"], timeout=300))


NAMES = [f"{coordinator}-{check.__name__}" for coordinator in COORDINATORS for check in CHECKS]


@pytest.mark.parametrize("name", NAMES)
def test_processes_on_one_host(one_host, name):
    assert one_host[name] == []


@pytest.mark.parametrize("name", NAMES)
def test_two_hosts(two_hosts, name):
    assert two_hosts[name] == []


def test_sharded_differences_take_little_more_than_the_least_that_must_travel(two_hosts):
    """d = 1,000,000; counted by the hosts' cards, within 10 % of (W − 1)/W·d a rank."""
    assert two_hosts["bytes"] == []

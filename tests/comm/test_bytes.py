from __future__ import annotations

import json

import pytest

from tests.hosts import hosts
from tests.real import ROOT

ALLGATHERS = (4096, 65536, 2**20, 2**22)


def counted(net, operations, sizes, algorithms, calls):
    program = ["-m", "mpi4py", "-m", "hvdgrab.bench.gather_program", "--calls", str(calls), "--algorithms", ",".join(algorithms)]
    words = ["--operations", ",".join(operations), "--sizes", ",".join(map(str, sizes))]
    job = net.mpirun(2, [*program, *words], timeout=180, cwd=ROOT)
    assert job.returncode == 0, job.stderr
    return {(row["operation"], row["algorithm"], row["bytes"]): row for row in json.loads(job.stdout)["rows"]}


@pytest.fixture(scope="module")
def rows():
    """Two hosts of two ranks, 100 Mbit/s; a few calls after each other between two looks at the cards."""
    with hosts(2, rate="100mbit") as net:
        found = counted(net, ["allgather"], ALLGATHERS[2:], ["hierarchical"], 1)
        found |= counted(net, ["allgather", "gather", "broadcast", "alltoall"], ALLGATHERS[:2], ["hierarchical", "flat"], 4)
    assert all(row["wrong"] == 0 for row in found.values())
    return found


@pytest.mark.parametrize("size", ALLGATHERS)
def test_a_hierarchical_allgather_brings_a_host_what_it_lacks_and_hardly_more(rows, size):
    """(N − 1)·L·m bytes: one other host with two ranks."""
    row = rows["allgather", "hierarchical", size]
    allowed = 1.05 if size >= 65536 else 1.15
    for count in (row["node_in"], row["node_out"]):
        assert 2 * size <= count <= allowed * 2 * size


@pytest.mark.parametrize(("operation", "copies"), [("gather", 2), ("broadcast", 1), ("alltoall", 4)])
def test_the_other_calls_bring_no_more_than_needed_either(rows, operation, copies):
    row = rows[operation, "hierarchical", 65536]
    assert copies * 65536 <= row["node_in"] <= 1.05 * copies * 65536


def test_the_cards_see_what_the_hierarchy_saves(rows):
    assert rows["allgather", "flat", 65536]["node_in"] >= 4 * 65536
    assert rows["broadcast", "flat", 65536]["node_in"] >= 2 * 65536

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.hosts import hosts
from tests.real import ROOT

PROGRAM = ["-m", "mpi4py", "-m", "tests.comm.connect_program"]


def words(action="end", **settings):
    return [*PROGRAM, json.dumps(settings), action]


@pytest.fixture(scope="module")
def net():
    """Docker's 64 MB of /dev/shm."""
    with hosts(["small", "other"], shm_bytes=64 * 2**20) as made:
        yield made


def test_a_job_that_was_killed_leaves_nothing_behind(net):
    """The tests below start jobs again, on the same hosts."""
    killed = net.mpirun(2, words("die", algorithm="hierarchical"), cwd=ROOT)
    assert killed.returncode != 0
    assert [net.run(name, ["ls", "/dev/shm"]).stdout for name in net.names] == ["", ""]


def test_two_jobs_on_the_same_hosts_do_not_meet_and_say_where_they_are(net):
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(net.mpirun, 2, words(algorithm="hierarchical"), cwd=ROOT) for _ in range(2)]
    for done in (job.result() for job in jobs):
        assert (done.returncode, done.stdout) == (0, "HierarchicalCommunicator\n"), done.stderr
        told = [line for line in done.stderr.splitlines() if line.startswith("hvdgrab")]
        assert told == ["hvdgrab: 4 ranks on 2 nodes: small 0-1, other 2-3; hierarchical communication"]


def test_auto_measures_and_a_single_rank_a_node_is_flat(net):
    done = net.mpirun(2, words(), cwd=ROOT)
    assert done.stdout == "ChoosingCommunicator\n", done.stderr
    assert "; gather " in done.stderr
    assert "(measured)" in done.stderr
    alone = net.mpirun(1, words(), cwd=ROOT)
    assert alone.stdout == "MPICommunicator\n"
    assert "2 ranks on 2 nodes: small 0, other 1; flat communication: every node has one rank" in alone.stderr


def test_shared_memory_that_is_nearly_full_is_not_used_and_refused_where_it_must_be(net):
    fill = "head -c $((58 * 1024 * 1024)) /dev/zero > /dev/shm/full"
    net.run("other", ["sh", "-c", fill])
    try:
        done = net.mpirun(2, words(), cwd=ROOT)
        assert done.stdout == "MPICommunicator\n", done.stderr
        assert "flat communication: /dev/shm of other has " in done.stderr
        refused = net.mpirun(2, words(algorithm="hierarchical"), cwd=ROOT)
        assert refused.returncode != 0
        assert "WorldError: communication.algorithm is hierarchical, but /dev/shm of other has" in refused.stderr
    finally:
        net.run("other", ["rm", "/dev/shm/full"])

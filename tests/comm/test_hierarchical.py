from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.comm import hierarchical
from hvdgrab.comm.simulated import ThreadNodes, run_all
from hvdgrab.errors import CommunicatorClosed
from tests.comm.checks import CHECKS

CLUSTERS = {
    "one-node": [[0, 1, 2]],
    "two-by-two": [[0, 1], [2, 3]],
    "alone": [[0], [1], [2]],
    "uneven": [[0, 1, 2], [3]],
    "by-node": [[0, 2, 4], [1, 3]],
    "five-nodes": [[0, 1], [2], [3], [4, 5], [6]],
}

SAMPLE = [("one-node", 4096), ("uneven", 16), ("by-node", 4096), ("five-nodes", 4096)]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("cluster", "slot_bytes"), SAMPLE)
def test_every_check_on_made_up_clusters(check, cluster, slot_bytes):
    run_all(ThreadNodes(CLUSTERS[cluster], slot_bytes=slot_bytes).communicators, check)


def moved(comm, what, root, count):
    """One call with distinct bytes on every rank; whether all that should arrive did."""
    own = (np.arange(count) * 7 + comm.rank * 31).astype(np.uint8)
    everyone = np.stack([(np.arange(count) * 7 + rank * 31).astype(np.uint8) for rank in range(comm.size)])
    if what == "broadcast":
        comm.broadcast(own, root)
        return (own == everyone[root]).all()
    receive = np.zeros_like(everyone) if what == "allgather" or comm.rank == root else None
    if what == "allgather":
        comm.allgather(own, receive)
    else:
        comm.gather(own, receive, root)
    return receive is None or (receive == everyone).all()


@st.composite
def jobs(draw):
    size = draw(st.integers(1, 9))
    where = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    nodes = [[rank for rank in range(size) if where[rank] == node] for node in dict.fromkeys(where)]
    kinds = st.sampled_from(["gather", "allgather", "broadcast"])
    calls = draw(st.lists(st.tuples(kinds, st.integers(0, size - 1), st.integers(0, 200)), min_size=1, max_size=12))
    return nodes, draw(st.integers(1, 5)), draw(st.integers(size, 64)), calls


@settings(max_examples=25, deadline=None)
@given(jobs())
def test_any_calls_on_any_cluster_with_any_window(job):
    nodes, slots, slot_bytes, calls = job
    made = ThreadNodes(nodes, slots=slots, slot_bytes=slot_bytes)
    assert all(run_all(made.communicators, lambda comm: all(moved(comm, *call) for call in calls), timeout=20.0))


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_payload_crosses_the_network_once_a_node(cluster):
    nodes, count = CLUSTERS[cluster], 10_000
    size = sum(map(len, nodes))
    for what in ("gather", "allgather", "broadcast"):
        made = ThreadNodes(nodes, slot_bytes=1024)
        assert all(run_all(made.communicators, partial(moved, what=what, root=size - 1, count=count)))
        for number, ranks in enumerate(nodes):
            here = size - 1 in ranks
            expected = {"gather": here * (size - len(ranks)), "allgather": size - len(ranks), "broadcast": 1 - here}[what]
            assert made.carried(number) == expected * count, (what, number)


def test_a_broadcast_leaves_no_rank_with_more_sends_than_a_tree_needs():
    made = ThreadNodes([[rank] for rank in range(16)])
    run_all(made.communicators, lambda comm: moved(comm, "broadcast", 5, 10))
    sends = [source for source, _ in made._network.carried]
    assert max(map(sends.count, sends)) == 4
    assert len(sends) == 15


def test_a_long_message_needs_no_more_memory_than_its_window(monkeypatch):
    monkeypatch.setattr(hierarchical, "LONGEST_STEP", 1)
    counts = []
    made = ThreadNodes([[0, 1], [2, 3]], slots=3, slot_bytes=64)
    run = hierarchical.HierarchicalCommunicator._run

    def counted(self, steps):
        counts.append(len(steps))
        run(self, steps)

    monkeypatch.setattr(hierarchical.HierarchicalCommunicator, "_run", counted)
    assert all(run_all(made.communicators, lambda comm: moved(comm, "allgather", 0, 300)))
    assert counts == [300] * 4


def test_only_short_gathers_meet_in_the_node():
    for count, carried in ((hierarchical.LONGEST_GATHER, 2 * hierarchical.LONGEST_GATHER), (hierarchical.LONGEST_GATHER + 1, 0)):
        made = ThreadNodes([[0], [1, 2]])
        assert all(run_all(made.communicators, partial(moved, what="gather", root=0, count=count)))
        assert made.carried(0) == carried


def test_ranks_that_are_waited_for_are_named_and_a_cancelled_call_ends():
    made = ThreadNodes([[0, 1], [2, 3]])
    first, missing = made.communicators[0], []

    def look():
        missing.append(first.waiting_for)
        first.cancel()

    timer = threading.Timer(0.3, look)
    timer.start()
    with pytest.raises(CommunicatorClosed, match="rank 0: closed while allgather waited"):
        first.allgather(np.zeros(4), np.zeros((4, 4)))
    timer.join()
    assert missing == [[1]]
    with pytest.raises(CommunicatorClosed, match="rank 2: the communicator is closed"):
        made.communicators[2].broadcast(np.zeros(1), 0)


def test_the_leader_of_a_node_that_is_late_is_named():
    made = ThreadNodes([[0, 1], [2]])
    seen = []

    def work(comm):
        if comm.rank == 2:
            threading.Event().wait(0.3)
            seen.append(made.communicators[0].waiting_for)
        comm.allgather(np.zeros(4), np.zeros((3, 4)))

    run_all(made.communicators, work)
    assert seen == [[2]]


def test_what_is_not_contiguous_is_refused():
    comm = ThreadNodes([[0]]).communicators[0]
    for call in (
        lambda: comm.allgather(np.zeros((4, 4))[:, 0], np.zeros((1, 4))),
        lambda: comm.allgather(np.zeros(4), np.zeros((1, 4, 2))[..., 0]),
        lambda: comm.broadcast(np.zeros((4, 4))[:, 0], 0),
    ):
        with pytest.raises(ValueError, match="must be contiguous"):
            call()

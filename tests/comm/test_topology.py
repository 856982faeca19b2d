from __future__ import annotations

import pytest

from hvdgrab.comm.topology import Place, Topology, check_shared_memory, find_topology, free_shared_memory, this_place
from hvdgrab.errors import WorldError

MIB = 2**20


def cluster(*nodes, names=None, slurm=None, free=None):
    """Places of ranks, from the ranks of each node as MPI sees them."""
    sharing = {rank: min(ranks) for ranks in nodes for rank in ranks}
    number = {rank: node for node, ranks in enumerate(nodes) for rank in ranks}
    return [
        Place(
            names[rank] if names else f"n{number[rank] + 1}", sharing[rank], None if slurm is None else slurm[rank],
            None if free is None else free,
        )
        for rank in sorted(sharing)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([[0, 1], [2, 3]], "4 ranks on 2 nodes: n1 0-1, n2 2-3"),
        ([[0, 2, 4], [1, 3]], "5 ranks on 2 nodes: n1 0,2,4, n2 1,3"),
        ([[0, 1, 2]], "3 ranks on 1 node: n1 0-2"),
        ([[0], [1], [2]], "3 ranks on 3 nodes: n1 0, n2 1, n3 2"),
        ([[0]], "1 rank on 1 node: n1 0"),
        ([[0, 3, 4], [1], [2, 5]], "6 ranks on 3 nodes: n1 0,3-4, n2 1, n3 2,5"),
    ],
)
def test_nodes_are_found_whatever_the_ranks_are_mapped_by(nodes, text):
    topology = find_topology(cluster(*nodes))
    assert topology.nodes == tuple(map(tuple, nodes))
    assert topology.text() == text
    assert topology.flat == all(len(ranks) == 1 for ranks in nodes)
    assert [rank in nodes[topology.node_of[rank]] for rank in range(topology.size)] == [True] * topology.size


def test_a_large_cluster_is_one_short_line():
    topology = find_topology(cluster(*[list(range(8 * node, 8 * node + 8)) for node in range(128)]))
    assert topology.text().startswith("1024 ranks on 128 nodes: n1 0-7, n2 8-15, ")
    assert topology.text().endswith("n6 40-47, …, n128 1016-1023")


def test_the_root_speaks_for_its_node_and_the_smallest_rank_for_the_others():
    topology = find_topology(cluster([0, 2], [1, 3]))
    assert [topology.leader(node) for node in (0, 1)] == [0, 1]
    assert [topology.leader(node, root=3) for node in (0, 1)] == [0, 3]
    assert [topology.leader(node, root=2) for node in (0, 1)] == [2, 1]


def test_a_rank_alone_among_others_of_its_host_is_refused():
    with pytest.raises(WorldError, match=r"ranks 0-3 are all on box, but MPI lets rank 0 share memory.*srun --mpi=pmix"):
        find_topology(cluster([0], [1], [2], [3], names=["box"] * 4))
    with pytest.raises(WorldError, match=r"ranks 0-2 are all on box, but MPI lets rank 2 share"):
        find_topology(cluster([0, 1], [2], names=["box"] * 3))


def test_machines_that_mpi_takes_for_one_are_refused():
    with pytest.raises(WorldError, match=r"ranks 0-3 share memory, but they are on a, b: .*host name.*algorithm: flat"):
        find_topology(cluster([0, 1, 2, 3], names=["a", "a", "b", "b"]))


def test_groups_of_several_ranks_with_one_host_name_are_kept_apart_and_noted():
    topology = find_topology(cluster([0, 1], [2, 3], names=["localhost"] * 4))
    assert topology.nodes == ((0, 1), (2, 3))
    assert "some nodes have the same host name; MPI keeps them apart" in topology.text()


def test_slurm_confirms_nodes_that_have_one_host_name():
    topology = find_topology(cluster([0], [1], names=["box"] * 2, slurm=[0, 1]))
    assert topology.nodes == ((0,), (1,))
    assert "MPI and SLURM agree" in topology.text()


def test_slurm_that_disagrees_with_mpi_and_hosts_is_noted_only():
    topology = find_topology(cluster([0, 1], [2, 3], slurm=[0, 0, 0, 0]))
    assert topology.nodes == ((0, 1), (2, 3))
    assert "SLURM counts 1 nodes, MPI 2: MPI's are used" in topology.text()


def test_node_size_splits_a_host_into_nodes():
    topology = find_topology(cluster([0, 1, 2, 3]), node_size=2)
    assert topology.nodes == ((0, 1), (2, 3))
    assert topology.hosts == ("n1", "n1")
    assert topology.text() == "4 ranks on 2 nodes: n1 0-1, n1 2-3; communication.node_size: 2 instead of MPI's 1 nodes"
    assert find_topology(cluster([0, 1], [2, 3]), node_size=2).notes == ()


def test_node_size_settles_what_is_refused_without_it():
    assert find_topology(cluster([0], [1], names=["box"] * 2), node_size=1).flat


@pytest.mark.parametrize(
    ("nodes", "size", "message"),
    [
        ([[0, 1], [2, 3]], 4, "size is 4, but MPI lets these ranks share no memory: rank 0 on n1.*rank 3 on n2.*map-by slot"),
        ([[0, 2], [1, 3]], 2, "rank 0 on n1, rank 1 on n2"),
        ([[0, 1, 2]], 2, "node_size is 2, but 3 ranks are no whole number of such nodes"),
    ],
)
def test_a_node_size_that_does_not_fit_is_refused(nodes, size, message):
    with pytest.raises(WorldError, match=message):
        find_topology(cluster(*nodes), node_size=size)


def test_slurms_variables_count_only_where_its_step_is_this_world():
    ours = {"SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0"}
    assert this_place(2, 4, ours).slurm_node == 1
    assert this_place(2, 8, ours).slurm_node is None, "a shell on an allocation, and mpirun in it"
    assert this_place(2, 4, {}).slurm_node is None


def test_shared_memory_that_does_not_suffice_is_named_with_its_host():
    places = cluster([0, 1], [2, 3], free=64 * MIB)
    topology = find_topology(places)
    assert check_shared_memory(places, topology, 32 * MIB) == ""
    text = check_shared_memory(places, topology, 33 * MIB)
    assert "/dev/shm of n1 has 64.0 MiB free, and the ranks there need 66.0 MiB" in text
    assert "--shm-size" in text


def test_nodes_on_one_host_share_its_memory_and_lone_ranks_need_none():
    places = cluster([0, 1, 2, 3], free=64 * MIB)
    assert check_shared_memory(places, find_topology(places, node_size=2), 20 * MIB) != ""
    assert check_shared_memory(places, find_topology(places, node_size=1), 20 * MIB) == ""
    assert check_shared_memory(cluster([0, 1]), Topology(((0, 1),), ("n1",)), 2**40) == "", "no /dev/shm, nothing to check"


def test_free_shared_memory_is_a_number_or_unknown(tmp_path):
    assert free_shared_memory(tmp_path) > 0
    assert free_shared_memory(tmp_path / "none") is None

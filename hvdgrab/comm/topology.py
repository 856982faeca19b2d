"""Which ranks share a node, according to MPI, checked against host names and SLURM.

MPI decides, because only MPI can give ranks shared memory; host names and SLURM tell whether MPI can be right.  If MPI put every
rank on a node of its own, or ranks of two machines on one, the run would be slow or would crash without a warning.  Such a world
is refused at the start, with advice.

Nothing here calls MPI: `hvdgrab.comm.connect` collects the facts, and tests can simulate any cluster.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdgrab.errors import WorldError

SHARED_MEMORY = Path("/dev/shm")

_NEITHER = "or communication.algorithm: flat, which needs no nodes"


@dataclass(frozen=True)
class Place:
    """The facts that one rank knows about the host that it runs on."""

    host: str
    sharing: int
    """Smallest of the ranks with which MPI lets it share memory, itself included: equal on all of them."""
    slurm_node: int | None = None
    """SLURM_NODEID; None if SLURM did not start this world."""
    shared_memory: int | None = None
    """Free bytes of /dev/shm; None if the system has none."""


def this_place(sharing: int, size: int, environment: Mapping[str, str] = os.environ) -> Place:
    """Collect the facts of this process; ``size``, the number of ranks, tells SLURM's variables of this world from older ones."""
    node, tasks = environment.get("SLURM_NODEID", ""), environment.get("SLURM_STEP_NUM_TASKS", "")
    of_this_world = node.isdigit() and tasks == str(size)
    return Place(socket.gethostname(), sharing, int(node) if of_this_world else None, free_shared_memory())


def free_shared_memory(path: Path = SHARED_MEMORY) -> int | None:
    """Bytes that may still be written to /dev/shm; None if there is none."""
    try:
        state = os.statvfs(path)
    except OSError:
        return None
    return state.f_bavail * state.f_frsize


@dataclass(frozen=True)
class Topology:
    """The nodes of a world, numbered in the order of their smallest ranks."""

    nodes: tuple[tuple[int, ...], ...]
    """The ranks of every node, ascending."""
    hosts: tuple[str, ...]
    """The host name of every node."""
    notes: tuple[str, ...] = ()
    """Harmless disagreements between the sources, for the reader."""
    node_of: tuple[int, ...] = field(init=False)
    """The node of every rank."""

    def __post_init__(self) -> None:
        of = {rank: node for node, ranks in enumerate(self.nodes) for rank in ranks}
        object.__setattr__(self, "node_of", tuple(of[rank] for rank in range(len(of))))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.node_of)

    def leader(self, node: int, root: int | None = None) -> int:
        """The node's leader, which talks to other nodes: ``root`` on its own node, else the smallest rank."""
        return root if root is not None and self.node_of[root] == node else self.nodes[node][0]

    @property
    def flat(self) -> bool:
        """Whether no two ranks share a node, so that a hierarchy would change nothing."""
        return len(self.nodes) == self.size

    def text(self) -> str:
        """Describe ranks, nodes, the place of each rank, and the notes in one line."""
        ranks = f"{self.size} rank{'s' * (self.size != 1)} on {len(self.nodes)} node{'s' * (len(self.nodes) != 1)}"
        shown = [f"{host} {_spans(ranks)}" for host, ranks in zip(self.hosts, self.nodes, strict=True)]
        places = ", ".join(shown if len(shown) <= 8 else [*shown[:6], "…", shown[-1]])
        return "; ".join([f"{ranks}: {places}", *self.notes])


def find_topology(places: Sequence[Place], node_size: int | None = None) -> Topology:
    """Find the nodes of a world from the facts of all ranks.

    Args:
        places: of all ranks, in rank order.
        node_size: number of consecutive ranks of each node, instead of MPI's nodes (``communication.node_size``).

    Raises:
        WorldError: on every rank, if MPI's nodes cannot be right, or ``node_size`` does not fit.
    """
    by_mpi = _groups(place.sharing for place in places)
    hosts = [place.host for place in places]
    if node_size is not None:
        return _overridden(by_mpi, hosts, node_size)
    by_host = _groups(hosts)
    by_slurm = None if any(place.slurm_node is None for place in places) else _groups(place.slurm_node for place in places)
    notes = []
    if by_mpi == by_slurm and by_mpi != by_host:
        notes.append("MPI and SLURM agree on the nodes, though some have the same host name")
    elif by_mpi != by_host:
        notes += _compare(by_mpi, hosts)
    if by_slurm is not None and by_slurm != by_mpi:
        notes.append(f"SLURM counts {len(by_slurm)} nodes, MPI {len(by_mpi)}: MPI's are used")
    return Topology(by_mpi, tuple(hosts[ranks[0]] for ranks in by_mpi), tuple(notes))


def check_shared_memory(places: Sequence[Place], topology: Topology, window_bytes: int) -> str:
    """Explain why shared memory is too small for windows of ``window_bytes`` on all nodes; empty if it is not.

    Half of the free space is left to MPI itself and to other jobs.  Nodes with the same host name share theirs.
    """
    for host in dict.fromkeys(topology.hosts):
        nodes = [ranks for ranks, name in zip(topology.nodes, topology.hosts, strict=True) if name == host and len(ranks) > 1]
        known = [free for ranks in nodes for rank in ranks if (free := places[rank].shared_memory) is not None]
        needed = 2 * window_bytes * len(nodes)
        if known and min(known) < needed:
            return (
                f"{SHARED_MEMORY} of {host} has {_mib(min(known))} free, and the ranks there need {_mib(needed)}: give the "
                f"container more (`docker run --shm-size=1g`), remove what killed jobs left in {SHARED_MEMORY}, {_NEITHER}"
            )
    return ""


def _compare(by_mpi: tuple[tuple[int, ...], ...], hosts: Sequence[str]) -> list[str]:
    """Notes on MPI's nodes that differ from those of the host names; raise if MPI's cannot be right."""
    for ranks in by_mpi:
        names = dict.fromkeys(hosts[rank] for rank in ranks)
        if len(names) > 1:
            raise WorldError(
                f"MPI says that ranks {_spans(ranks)} share memory, but they are on {', '.join(names)}: machines that MPI takes "
                "for one crash or hang. Give every machine or container of the job a host name that the launcher knows, "
                f"or set communication.node_size, {_NEITHER}"
            )
        alone = [rank for rank, host in enumerate(hosts) if host == hosts[ranks[0]]]
        if len(ranks) == 1 and len(alone) > 1:
            raise WorldError(
                f"ranks {_spans(alone)} are all on {hosts[ranks[0]]}, but MPI lets rank {ranks[0]} share memory with none of "
                "them: they run in containers of their own, or under a PMI that does not know the nodes. Start a host's ranks in "
                "one container, try `srun --mpi=pmix`, give the hosts different names if they are several, or set "
                f"communication.node_size: 1, {_NEITHER}"
            )
    return ["some nodes have the same host name; MPI keeps them apart"]


def _overridden(by_mpi: tuple[tuple[int, ...], ...], hosts: Sequence[str], node_size: int) -> Topology:
    if len(hosts) % node_size:
        raise WorldError(
            f"communication.node_size is {node_size}, but {len(hosts)} ranks are no whole number of such nodes: leave it out, or "
            "set one that divides the number of ranks"
        )
    nodes = tuple(tuple(range(first, first + node_size)) for first in range(0, len(hosts), node_size))
    together = {rank: number for number, ranks in enumerate(by_mpi) for rank in ranks}
    for ranks in nodes:
        if len({together[rank] for rank in ranks}) > 1:
            places = ", ".join(f"rank {rank} on {hosts[rank]}" for rank in ranks)
            raise WorldError(
                f"communication.node_size is {node_size}, but MPI lets these ranks share no memory: {places}. Set a smaller one, "
                f"start the ranks of a node together (mpirun --map-by slot), {_NEITHER}"
            )
    same = nodes == by_mpi
    note = () if same else (f"communication.node_size: {node_size} instead of MPI's {len(by_mpi)} nodes",)
    return Topology(nodes, tuple(hosts[ranks[0]] for ranks in nodes), note)


def _groups(keys: Iterable[object]) -> tuple[tuple[int, ...], ...]:
    """Group the ranks with equal keys, in the order of the groups' smallest ranks."""
    found: dict[object, list[int]] = {}
    for rank, key in enumerate(keys):
        found.setdefault(key, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())


def _spans(ranks: Sequence[int]) -> str:
    """Write ranks as ``0-3,8``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"

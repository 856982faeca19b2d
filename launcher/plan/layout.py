"""How many ranks a job has, where they run, and how many threads each gets."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from launcher.jobdir.plan import HostSlots
from launcher.plan.spread import SpreadError, offered, spread, without
from launcher.spec.model import Spec
from launcher.spec.sections import SshSettings

AUTO_RANKS = 4
AUTO_RANKS_ONE_CORE = 2


@dataclass(frozen=True)
class Layout:
    """Ranks and hosts of one attempt."""

    wanted: int
    """Ranks that train, as the spec has it."""
    training: int
    """Ranks that train in this attempt."""
    server: int
    offered: tuple[HostSlots, ...]
    hosts: tuple[HostSlots, ...]
    oversubscribed: bool
    threads: int

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.training + self.server


def make_layout(spec: Spec, cores: int, *, slurm: bool, allocation: int | None, excluded: Collection[str]) -> Layout:
    """Ranks and hosts for a spec.

    Args:
        spec: the spec.
        cores: cores of this host.
        slurm: whether SLURM finds the hosts.
        allocation: slots of the allocation that is used, where one is.
        excluded: hosts that are avoided.

    Raises:
        PlanError: where the ranks do not fit, or a consent is missing.
    """
    if allocation is not None:
        return _in_allocation(spec, allocation)
    if slurm:
        return _under_slurm(spec)
    resources = spec.resources
    if not resources.hosts:
        ranks = count_ranks(spec, cores)
        total = ranks + resources.server_ranks
        shared = _share_cores(spec, ranks, cores)
        return Layout(ranks, ranks, resources.server_ranks, (), (), shared, _threads(spec, cores, total))
    return _on_hosts(spec, cores, excluded)


def count_ranks(spec: Spec, cores: int) -> int:
    """Ranks that train: as given, or for ``auto`` 4, and 2 where only one core is there."""
    ranks = spec.resources.ranks
    if ranks == "auto":
        return AUTO_RANKS if cores > 1 else AUTO_RANKS_ONE_CORE
    return ranks


def _threads(spec: Spec, cores: int, ranks: int) -> int:
    threads = spec.resources.threads_per_rank
    return max(1, cores // ranks) if threads == "auto" else threads


def _share_cores(spec: Spec, training: int, cores: int) -> bool:
    """Whether ranks share a core of this host, where the spec consents to it."""
    server = spec.resources.server_ranks
    if training + server <= cores:
        return False
    if not spec.resources.oversubscribe:
        extra = " and a server rank" if server else ""
        fewer = f", or `resources.ranks: {cores - server}`" if cores > server else ""
        raise spec.refuse(
            "resources.ranks",
            f"{training} ranks{extra} on {cores} core{'s' if cores > 1 else ''} of this host would take turns: write "
            f"`resources.oversubscribe: true` to allow it{fewer}",
        )
    return True


def _on_hosts(spec: Spec, cores: int, excluded: Collection[str]) -> Layout:
    resources, server = spec.resources, spec.resources.server_ranks
    try:
        hosts = offered(resources.hosts, resources.ranks, server)
        slots = sum(host.slots for host in hosts)
        wanted = slots - server if resources.ranks == "auto" else resources.ranks
        if wanted < 1:
            raise SpreadError("the only slot is taken by the server rank: add a slot")
        left, training = without(hosts, excluded, wanted, server, spec.restart.min_ranks, resources.oversubscribe)
        used = spread(left, training + server, resources.oversubscribe)
    except ValueError as error:
        raise spec.refuse("resources.hosts", str(error)) from None
    shared = training + server > sum(host.slots for host in left)
    threads = _threads(spec, cores, max(host.slots for host in used))
    return Layout(wanted, training, server, hosts, used, shared, threads)


def _in_allocation(spec: Spec, slots: int) -> Layout:
    resources, server = spec.resources, spec.resources.server_ranks
    ranks = max(1, slots - server) if resources.ranks == "auto" else resources.ranks
    shared = ranks + server > slots
    if shared and not resources.oversubscribe:
        held = f"this allocation of SLURM has room for {slots} tasks"
        raise spec.refuse("resources.ranks", f"{ranks + server} ranks do not fit: {held}; use `salloc --ntasks={ranks + server}`")
    return Layout(ranks, ranks, server, (), (), shared, threads=_threads(spec, 1, 1))


def _under_slurm(spec: Spec) -> Layout:
    resources, slurm = spec.resources, spec.slurm
    if resources.hosts:
        raise spec.refuse("resources.hosts", "SLURM chooses the hosts: remove them, or use `backend.kind: mpirun`")
    nodes, per_node = (slurm.nodes, slurm.ranks_per_node) if slurm else (None, None)
    ranks = resources.ranks
    if ranks == "auto":
        if nodes is None or per_node is None:
            message = "SLURM must be told: write resources.ranks, or slurm.nodes and slurm.ranks_per_node"
            raise spec.refuse("resources.ranks", message)
        ranks = nodes * per_node - resources.server_ranks
    total = ranks + resources.server_ranks
    if nodes is not None and per_node is not None and not 1 <= ranks <= nodes * per_node - resources.server_ranks:
        places = f"slurm.nodes: {nodes} times slurm.ranks_per_node: {per_node} gives {nodes * per_node} places"
        raise spec.refuse("resources.ranks", f"{total} ranks do not fit: {places}")
    if nodes is not None and nodes > total:
        raise spec.refuse("slurm.nodes", f"{nodes} nodes are more than {total} ranks: some would stand idle")
    threads = resources.threads_per_rank
    return Layout(ranks, ranks, resources.server_ranks, (), (), oversubscribed=False, threads=1 if threads == "auto" else threads)


def ssh_command(ssh: SshSettings) -> tuple[str, ...]:
    """How a host is reached: ssh with its options, to which the host is added.  It never asks, and gives up after a while."""
    options = ["BatchMode=yes", "ConnectTimeout=10", *ssh.options]
    words = ["ssh", "-x", *(word for option in options for word in ("-o", option))]
    words += ["-p", str(ssh.port)] if ssh.port is not None else []
    words += ["-i", ssh.identity] if ssh.identity is not None else []
    words += ["-l", ssh.user] if ssh.user is not None else []
    return tuple(words)

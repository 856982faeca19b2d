"""How many ranks a job has, on which hosts they run, and how many threads each gets: arithmetic on names and slots."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from launcher.jobdir.plan import HostSlots
from launcher.spec.hosts import merge, parse_hosts
from launcher.spec.model import Spec, SshSettings

AUTO_RANKS = 4
AUTO_RANKS_ONE_CORE = 2


class SpreadError(ValueError):
    """The ranks do not fit; the text says what would."""


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
    """Lay out a spec's ranks on hosts.

    Args:
        spec: the spec.
        cores: cores of this host.
        slurm: whether SLURM finds the hosts.
        allocation: slots of the allocation that is used, if there is one.
        excluded: hosts that are avoided.

    Raises:
        PlanError: if the ranks do not fit, or a consent is missing.
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
    """Count the ranks that train: as given; for ``auto`` 4, or 2 on a single core."""
    ranks = spec.resources.ranks
    if ranks == "auto":
        return AUTO_RANKS if cores > 1 else AUTO_RANKS_ONE_CORE
    return ranks


def _threads(spec: Spec, cores: int, ranks: int) -> int:
    threads = spec.resources.threads_per_rank
    return max(1, cores // ranks) if threads == "auto" else threads


def _share_cores(spec: Spec, training: int, cores: int) -> bool:
    """Tell whether ranks share a core of this host.  Raises PlanError unless the spec consents to it."""
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


def offered(items: Sequence[str], ranks: int | str, server_ranks: int) -> tuple[HostSlots, ...]:
    """List all hosts of a spec, with slots.

    Hosts without slots share the ranks that the others leave, evenly, the first ones taking one more.

    Args:
        items: ``resources.hosts``.
        ranks: ranks that train, or ``auto``: all slots.
        server_ranks: further ranks.

    Raises:
        SpreadError: if there is no telling how many slots a host has.
        ValueError: if an item is malformed.
    """
    hosts = merge([host for item in items for host in parse_hosts(item)])
    unknown = [host for host in hosts if host.slots is None]
    if not unknown:
        return tuple(HostSlots(host.name, host.slots or 0) for host in hosts)
    if isinstance(ranks, str):
        raise SpreadError(f"{unknown[0].name} has no slots: write {unknown[0].name}:N, or the number of ranks in resources.ranks")
    left = max(0, ranks + server_ranks - sum(host.slots or 0 for host in hosts))
    share, more = divmod(left, len(unknown))
    shares = {host.name: max(1, share + (place < more)) for place, host in enumerate(unknown)}
    return tuple(HostSlots(host.name, host.slots or shares[host.name]) for host in hosts)


def spread(hosts: Sequence[HostSlots], ranks: int, oversubscribe: bool) -> tuple[HostSlots, ...]:
    """Choose the hosts that are used, each with as many slots as ranks run there; neighbouring ranks share a host.

    Raises:
        SpreadError: if there are more ranks than slots, without consent.
    """
    slots = sum(host.slots for host in hosts)
    if ranks > slots and not oversubscribe:
        raise SpreadError(
            f"{ranks} ranks on {slots} slots of {len(hosts)} host{'s' if len(hosts) > 1 else ''} would take turns: add hosts or "
            f"slots, write `resources.oversubscribe: true` to allow it, or `resources.ranks: {slots}`"
        )
    counts = _overfull(hosts, ranks) if ranks > slots else _filled(hosts, ranks)
    return tuple(HostSlots(host.name, count) for host, count in zip(hosts, counts, strict=True) if count)


def _filled(hosts: Sequence[HostSlots], ranks: int) -> list[int]:
    counts = []
    for host in hosts:
        counts.append(min(host.slots, ranks))
        ranks -= counts[-1]
    return counts


def _overfull(hosts: Sequence[HostSlots], ranks: int) -> list[int]:
    """Share out more ranks than slots: each host takes its part by slots, rounded so that the sum is right."""
    slots = sum(host.slots for host in hosts)
    bounds, seen = [0], 0
    for host in hosts:
        seen += host.slots
        bounds.append(ranks * seen // slots)
    return [after - before for before, after in itertools.pairwise(bounds)]


def without(
    hosts: Sequence[HostSlots], excluded: Collection[str], ranks: int, server_ranks: int, min_ranks: int | None, share: bool
) -> tuple[tuple[HostSlots, ...], int]:
    """Leave out some hosts, and count the ranks that train which the others can take.

    Args:
        hosts: all hosts.
        excluded: names of those that are avoided.
        ranks: ranks that train, wanted.
        server_ranks: further ranks.
        min_ranks: fewest ranks that train with which the job may start; None: no fewer than wanted.
        share: whether ranks may share a slot.

    Raises:
        SpreadError: if too few are left.
    """
    left = tuple(host for host in hosts if host.name not in excluded)
    lost = [host.name for host in hosts if host.name in excluded]
    slots = sum(host.slots for host in left) - server_ranks
    if not lost or slots >= ranks:
        return left, ranks
    names = ", ".join(lost[:5]) + (", …" if len(lost) > 5 else "")
    if not left:
        raise SpreadError(f"all hosts are avoided for now: {names}")
    if min_ranks is None and share:
        return left, ranks
    if min_ranks is None:
        raise SpreadError(
            f"without {names}, {max(0, slots)} slots are left for {ranks} ranks; restart.min_ranks would allow fewer"
        )
    if slots < min(min_ranks, ranks):
        raise SpreadError(f"without {names}, {max(0, slots)} slots are left, fewer than restart.min_ranks: {min_ranks}")
    return left, slots


def ssh_command(ssh: SshSettings) -> tuple[str, ...]:
    """Build the ssh command to which a host is added.  It never asks for anything, and gives up after a while."""
    options = ["BatchMode=yes", "ConnectTimeout=10", *ssh.options]
    words = ["ssh", "-x", *(word for option in options for word in ("-o", option))]
    words += ["-p", str(ssh.port)] if ssh.port is not None else []
    words += ["-i", ssh.identity] if ssh.identity is not None else []
    words += ["-l", ssh.user] if ssh.user is not None else []
    return tuple(words)

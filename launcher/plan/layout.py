"""How many ranks a job has, on which hosts they run, and how many threads each gets: arithmetic on names and slots."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace

from launcher.jobdir.plan import HostSlots, Placement
from launcher.plan.facts import Facts
from launcher.spec.hosts import merge, parse_hosts
from launcher.spec.model import Spec, SshSettings

AUTO_RANKS = 4
AUTO_RANKS_ONE_CORE = 2


class SpreadError(ValueError):
    """The ranks do not fit; the text says what would."""


def make_placement(
    spec: Spec, facts: Facts, *, slurm: bool, allocation: int | None, excluded: Collection[str]
) -> Placement:
    """Place a spec's ranks.

    Args:
        spec: the spec.
        facts: this host.
        slurm: whether SLURM finds the hosts.
        allocation: slots of the allocation that is used, if there is one.
        excluded: hosts that are avoided.

    Raises:
        PlanError: if the ranks do not fit, or a consent is missing.
    """
    server, cores = spec.resources.server_ranks, facts.cores
    if allocation is not None:
        training = _ranks_in_allocation(spec, allocation)
        return _placed(spec, facts, training, excluded, 1, shared=training + server > allocation)
    if slurm:
        return _placed(spec, facts, _ranks_under_slurm(spec), excluded, 1)
    if spec.resources.hosts:
        return _on_hosts(spec, facts, excluded)
    training = count_ranks(spec, cores)
    shared = _share_cores(spec, training, cores)
    return _placed(spec, facts, training, excluded, cores // (training + server), shared=shared)


def _placed(
    spec: Spec, facts: Facts, training: int, excluded: Collection[str], threads: int, *, shared: bool = False
) -> Placement:
    """Place ranks on this host, or leave their hosts to SLURM; ``threads`` are those of a rank for ``threads_per_rank: auto``."""
    resources = spec.resources
    return Placement(
        host=facts.host,
        cores=facts.cores,
        ranks=training + resources.server_ranks,
        wanted_ranks=training,
        server_ranks=resources.server_ranks,
        hosts=(),
        offered_hosts=(),
        excluded_hosts=tuple(sorted(excluded)),
        ssh_command=(),
        oversubscribed=shared,
        may_oversubscribe=resources.oversubscribe,
        binding=resources.binding,
        threads_per_rank=max(1, threads) if resources.threads_per_rank == "auto" else resources.threads_per_rank,
        gpus_per_rank=resources.gpus_per_rank,
    )


def _on_hosts(spec: Spec, facts: Facts, excluded: Collection[str]) -> Placement:
    resources, server = spec.resources, spec.resources.server_ranks
    try:
        hosts = offered(resources.hosts, resources.ranks, server)
        wanted = sum(host.slots for host in hosts) - server if resources.ranks == "auto" else resources.ranks
        if wanted < 1:
            raise SpreadError("the only slot is taken by the server rank: add a slot")
        bare = replace(_placed(spec, facts, wanted, excluded, 1), offered_hosts=hosts, ssh_command=ssh_command(resources.ssh))
        placed = choose_hosts(bare, spec.restart.min_ranks)
    except ValueError as error:
        raise spec.refuse("resources.hosts", str(error)) from None
    if resources.threads_per_rank == "auto":
        placed = replace(placed, threads_per_rank=max(1, facts.cores // max(host.slots for host in placed.hosts)))
    return placed


def choose_hosts(placement: Placement, min_ranks: int | None) -> Placement:
    """Choose hosts among the offered ones that are not excluded, for as many of the wanted ranks as they take.

    Raises:
        SpreadError: if too few are left.
    """
    share, server = placement.may_oversubscribe, placement.server_ranks
    excluded, wanted = placement.excluded_hosts, placement.wanted_ranks
    left, training = without(placement.offered_hosts, excluded, wanted, server, min_ranks, share)
    ranks = training + server
    shared = ranks > sum(host.slots for host in left)
    return replace(placement, hosts=spread(left, ranks, share), ranks=ranks, oversubscribed=shared)


def count_ranks(spec: Spec, cores: int) -> int:
    """Count the ranks that train: as given; for ``auto`` 4, or 2 on a single core."""
    ranks = spec.resources.ranks
    if ranks == "auto":
        return AUTO_RANKS if cores > 1 else AUTO_RANKS_ONE_CORE
    return ranks


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


def _ranks_in_allocation(spec: Spec, slots: int) -> int:
    resources, server = spec.resources, spec.resources.server_ranks
    ranks = max(1, slots - server) if resources.ranks == "auto" else resources.ranks
    if ranks + server > slots and not resources.oversubscribe:
        held = f"this allocation of SLURM has room for {slots} tasks"
        raise spec.refuse("resources.ranks", f"{ranks + server} ranks do not fit: {held}; use `salloc --ntasks={ranks + server}`")
    return ranks


def _ranks_under_slurm(spec: Spec) -> int:
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
    return ranks


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

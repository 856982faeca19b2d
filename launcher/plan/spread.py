"""Which ranks run on which host: pure arithmetic on names and slots."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from launcher.jobdir.plan import HostSlots
from launcher.spec.hosts import merge, parse_hosts


class SpreadError(ValueError):
    """The ranks do not fit; the text says what would."""


def offered(items: Sequence[str], ranks: int | str, server_ranks: int) -> tuple[HostSlots, ...]:
    """All hosts of a spec, with slots.

    Hosts without slots share the ranks that the others leave, evenly, the first ones taking one more.

    Args:
        items: ``resources.hosts``.
        ranks: ranks that train, or ``auto``: all slots.
        server_ranks: further ranks.

    Raises:
        SpreadError: where there is no telling how many slots a host has.
        ValueError: where an item is malformed.
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
    """The hosts that are used, each with as many slots as ranks run there; neighbouring ranks share a host.

    Raises:
        SpreadError: where there are more ranks than slots, without consent.
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
    """More ranks than slots: every host takes its share by slots, rounded so that the sum is right."""
    slots = sum(host.slots for host in hosts)
    bounds, seen = [0], 0
    for host in hosts:
        seen += host.slots
        bounds.append(ranks * seen // slots)
    return [after - before for before, after in itertools.pairwise(bounds)]


def without(
    hosts: Sequence[HostSlots], excluded: Collection[str], ranks: int, server_ranks: int, min_ranks: int | None, share: bool
) -> tuple[tuple[HostSlots, ...], int]:
    """The hosts that are left without some, and how many ranks that train they can take.

    Args:
        hosts: all hosts.
        excluded: names of those that are avoided.
        ranks: ranks that train, wanted.
        server_ranks: further ranks.
        min_ranks: fewest ranks that train with which the job may start; None: no fewer than wanted.
        share: whether ranks may share a slot.

    Raises:
        SpreadError: where too few are left.
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

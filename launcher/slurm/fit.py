"""What a job asks SLURM for against what there is: pure, so that every answer of a cluster can be tried.

A finding is *certain* where SLURM would refuse the job, or keep it waiting for ever; others are said and hold nobody up.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from launcher.host.text import counted, duration
from launcher.jobdir.plan import Plan
from launcher.slurm.script import SPARE_SECONDS, asked_of
from launcher.slurm.site import Partition
from launcher.spec.hosts import expand_nodelist

_SHORT = {"partition": "p", "account": "A", "qos": "q", "constraint": "C", "overcommit": "O"}


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit."""

    path: str
    """Dotted path of the setting."""
    message: str
    """What is wrong, and what there is."""
    certain: bool = True
    """Whether the job could never run like this; else it may, and people should know."""


@dataclass(frozen=True)
class Site:
    """What one cluster has said."""

    cluster: str | None = None
    """Its name, where the job names clusters."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """As ``scontrol show config`` has them."""
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    default: str | None = None
    """The partition of jobs that name none."""
    accounts: Collection[str] | None = None
    """Accounts that this user may use; None where that is not known, as without slurmdbd."""
    qos: Collection[str] | None = None
    reservations: Collection[str] | None = None
    clusters: Collection[str] | None = None
    """All clusters, where this one does not exist; else None."""
    fault: str | None = None
    """Why it does not answer."""

    @property
    def enforced(self) -> str:
        """What of accounting SLURM insists on, such as ``associations,limits,qos``."""
        return self.settings.get("AccountingStorageEnforce", "")


def findings(plan: Plan, site: Site) -> list[Finding]:
    """All that does not fit.

    Args:
        plan: a plan whose backend is slurm.
        site: a cluster that has answered.
    """
    if site.clusters is not None:
        return [Finding("slurm.clusters", _absent("cluster", site.cluster or "", site.clusters))]
    names = _partition_names(plan, site)
    unknown = [name for name in names if name not in site.partitions]
    if unknown:
        absent = [Finding("slurm.partition", _absent("partition", name, site.partitions)) for name in unknown]
        return [*absent, *_names(plan, site)]
    return [*_partitions(plan, [site.partitions[name] for name in names]), *_names(plan, site)]


def fitting(plan: Plan, site: Site) -> list[str]:
    """Names of the partitions that the job asks for, or would get."""
    return [name for name in _partition_names(plan, site) if name in site.partitions]


def _partition_names(plan: Plan, site: Site) -> list[str]:
    return [name for name in (asked(plan, "partition") or site.default or "").split(",") if name]


def asked(plan: Plan, name: str) -> str | None:
    """What the job asks for under an option of sbatch: in ``slurm.extra``, which comes last and wins, else under its own key."""
    slurm = asked_of(plan)
    value = getattr(slurm, name, None)
    for option in slurm.extra:
        long, short = f"--{name}", f"-{_SHORT.get(name, '?')}"
        if option == long or option.startswith(f"{long}="):
            value = option.partition("=")[2]
        elif option.startswith(short) and not option.startswith("--"):
            value = option[2:].strip()
    return value


def _absent(kind: str, name: str, there: Collection[str]) -> str:
    """That something does not exist, what was meant perhaps, and what exists."""
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in there], n=1)
    meant = next((one for one in there if near and one.lower() == near[0]), None)
    shown = ", ".join(sorted(there)[:30]) + (" ..." if len(there) > 30 else "")
    hint = f"; did you mean {meant!r}?" if meant else ""
    return f"there is no {kind} {name!r}{hint} (there {'are' if len(there) > 1 else 'is'}: {shown or 'none'})"


def _partitions(plan: Plan, partitions: list[Partition]) -> Iterator[Finding]:
    """SLURM takes the first partition in which the job fits, so one that does is enough."""
    found = [list(_lacks(plan, partition)) for partition in partitions]
    if found and all(any(finding.certain for finding in some) for some in found):
        yield from found[0]
    else:
        best = min(found, key=lambda some: (any(finding.certain for finding in some), len(some)), default=[])
        yield from (finding for finding in best if not finding.certain)


def _lacks(plan: Plan, partition: Partition) -> Iterator[Finding]:
    slurm = asked_of(plan)
    where = f"partition {partition.name}"
    nodes = slurm.nodes or 1
    per_node = slurm.ranks_per_node or -(-plan.placement.ranks // nodes)
    asks = f"{counted(nodes, 'node')} {'is' if nodes == 1 else 'are'} asked for"
    if nodes > partition.nodes:
        yield Finding("slurm.nodes", f"{asks}, {where} has {partition.nodes}")
    elif nodes > partition.usable:
        yield Finding("slurm.nodes", f"{asks}, only {partition.usable} of {where} can be used now",
                      certain=False)  # fmt: skip
    if asked(plan, "overcommit") is None:
        yield from _cores(plan, partition, where, per_node)
    yield from _amounts(plan, partition, where, per_node)
    yield from _features(plan, partition, where)
    if not partition.up:
        yield Finding("slurm.partition", f"{where} takes no jobs to run at present: the job waits until it does", certain=False)


def _cores(plan: Plan, partition: Partition, where: str, per_node: int) -> Iterator[Finding]:
    threads = plan.placement.threads_per_rank
    if asked_of(plan).nodes and per_node * threads > partition.cpus:
        asks = f"{per_node} ranks of {counted(threads, 'core')} a node"
        yield Finding("resources.ranks", f"{asks} are asked for, {where} has {partition.cpus} cores a node")
    elif plan.placement.ranks * threads > partition.cpus * partition.nodes or threads > partition.cpus:
        asks = f"{plan.placement.ranks} ranks of {counted(threads, 'core')}"
        size = f"{counted(partition.nodes, 'node')} of at most {counted(partition.cpus, 'core')}"
        yield Finding("resources.ranks", f"{asks} are asked for, {where} has {size}")


def _amounts(plan: Plan, partition: Partition, where: str, per_node: int) -> Iterator[Finding]:
    slurm = asked_of(plan)
    limit = plan.limits.time_limit
    if limit is not None and partition.limit is not None and limit + SPARE_SECONDS > partition.limit:
        asks = f"{duration(limit)} and {SPARE_SECONDS:.0f} s to end in"
        message = f"{asks} are asked for, {where} allows {duration(partition.limit)}"
        yield Finding("resources.time_limit", message, certain=asked(plan, "qos") is None)  # a QOS may lift a partition's limit
    if (memory := slurm.memory or 0) > partition.memory * 2**20:
        message = f"{memory / 2**30:.1f} GiB a node are asked for, {where} has {partition.memory / 1024:.1f}"
        yield Finding("slurm.memory", message)
    gpus = slurm.gpus_per_node or (plan.placement.gpus_per_rank or 0) * per_node
    if gpus > partition.gpus:
        key = "slurm.gpus_per_node" if slurm.gpus_per_node else "resources.gpus_per_rank"
        yield Finding(key, f"{gpus} GPUs a node are asked for, {where} has {partition.gpus}")


def _features(plan: Plan, partition: Partition, where: str) -> Iterator[Finding]:
    """Words of ``a100&ib``, ``[rack1*2|rack2*2]``: counts behind ``*`` are none."""
    wanted = re.findall(r"(?<![\w.*-])[A-Za-z_][\w.:-]*", asked(plan, "constraint") or "")
    for name in dict.fromkeys(wanted):
        if name not in partition.features:
            yield Finding("slurm.constraint", _absent(f"feature in {where} called", name, partition.features))
    for name in _excluded(plan):
        if partition.names and name not in partition.names:
            yield Finding("slurm.exclude", f"{where} has no node {name}: nothing is left out by it", certain=False)


def _excluded(plan: Plan) -> list[str]:
    try:
        return expand_nodelist(asked_of(plan).exclude or "")
    except ValueError:
        return []


def _names(plan: Plan, site: Site) -> Iterator[Finding]:
    """Reservation, account and QOS, where SLURM can say whether they exist."""
    reservation, account, qos = asked(plan, "reservation"), asked(plan, "account"), asked(plan, "qos")
    for name in (reservation or "").split(","):
        if name and site.reservations is not None and name not in site.reservations:
            yield Finding("slurm.reservation", _absent("reservation", name, site.reservations))
    if account and site.accounts is not None and account not in site.accounts:
        message = _absent("account of yours called", account, site.accounts)
        yield Finding("slurm.account", message, certain="associations" in site.enforced or "limits" in site.enforced)
    if qos and site.qos is not None and qos not in site.qos:
        yield Finding("slurm.qos", _absent("QOS", qos, site.qos), certain="qos" in site.enforced)


_REFUSALS = (
    (r"partition specified|partition name", "slurm.partition"),
    (r"account", "slurm.account"),
    (r"qos", "slurm.qos"),
    (r"feature", "slurm.constraint"),
    (r"reservation", "slurm.reservation"),
    (r"node name", "slurm.exclude"),
    (r"time limit is invalid", "resources.time_limit"),
    (r"unrecognized option|invalid option|option requires|ambiguous", "slurm.extra"),
)
_CERTAIN = r"invalid|unrecognized|ambiguous|option requires"


def refused(said: str) -> Finding:
    """What ``sbatch --test-only`` refuses, as a finding about the setting that it means.

    Only what names a setting is certain: of a job that would merely wait SLURM says that its nodes are not available.
    """
    text = said.lower()
    path = next((path for pattern, path in _REFUSALS if re.search(pattern, text)), None)
    certain = path is not None and re.search(_CERTAIN, text) is not None
    return Finding(path or "slurm", f"SLURM would not take the job as it is: {said}", certain=certain)

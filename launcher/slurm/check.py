"""Asking SLURM about a job before it is submitted, so that a person learns of a mistake before the queue does.

Three parts: what a cluster offers, as SLURM's programs print it; what a job asks for against that, as pure functions, so that
every answer of a cluster can be tried; and the questions.  All questions to a cluster are asked at once, and each has a few
seconds; if one is not answered, the job is submitted unchecked.
"""

from __future__ import annotations

import difflib
import getpass
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from launcher.errors import PlanError
from launcher.host.program import Answer
from launcher.host.text import counted, duration
from launcher.jobdir.plan import Plan
from launcher.slurm.commands import NoAnswer, Reach, nodes_in, rows_below, seconds
from launcher.slurm.script import SPARE_SECONDS, asked_of, script

if TYPE_CHECKING:
    from launcher.spec.model import Spec

SECONDS = 5.0
"""Time for each answer."""
SINFO_FORMAT = "%R|%a|%l|%D|%T|%c|%m|%G|%f|%N"
SINFO_HEADER = "PARTITION|AVAIL|TIMELIMIT|NODES|STATE|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST"


@dataclass(frozen=True)
class Partition:
    """A partition, its largest node, and all its features."""

    name: str
    up: bool
    limit: float | None
    """Seconds that a job may take; None for no limit."""
    nodes: int
    usable: int
    """Nodes that are not down or drained."""
    cpus: int
    memory: int
    """Of the largest node, MiB."""
    gpus: int
    features: frozenset[str]
    names: frozenset[str] = frozenset()
    """Of its nodes; empty if they are not known."""


def parse_partitions(text: str) -> dict[str, Partition]:
    """Partitions by name from ``sinfo -o SINFO_FORMAT``.  Raises NoAnswer if that is no such table."""
    found: dict[str, Partition] = {}
    for line in rows_below(text, SINFO_HEADER):
        cells = line.split("|")
        if len(cells) != 10 or not cells[3].isdigit():
            raise NoAnswer(f"sinfo printed {line[:80]!r}")
        row = _row(cells)
        known = found.get(row.name)
        found[row.name] = row if known is None else _merged(known, row)
    return found


def _row(cells: list[str]) -> Partition:
    name, available, limit, nodes, state, cpus, memory, gres, features, nodelist = cells
    count = int(nodes)
    bad = re.match(r"(down|drain|fail|inval|unk|maint|power)", state.lower()) is not None or state.endswith("*")
    known = frozenset() if features == "(null)" else frozenset(features.split(","))
    return Partition(
        name, available == "up", seconds(limit), count, 0 if bad else count, _number(cpus), _number(memory), gpus_in(gres), known,
        frozenset(nodes_in(nodelist)),
    )  # fmt: skip


def _merged(one: Partition, other: Partition) -> Partition:
    return replace(
        one, nodes=one.nodes + other.nodes, usable=one.usable + other.usable, cpus=max(one.cpus, other.cpus),
        memory=max(one.memory, other.memory), gpus=max(one.gpus, other.gpus), features=one.features | other.features,
        names=one.names | other.names,
    )  # fmt: skip


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found.group(0)) if found else 0


def gpus_in(gres: str) -> int:
    """GPUs of a node in ``gpu:a100:4(S:0-1),gpu:2``."""
    return sum(int(number) for number in re.findall(r"gpu(?::[A-Za-z][\w.-]*)?:(\d+)", gres))


def parse_config(text: str) -> dict[str, str]:
    """Settings from ``scontrol show config``."""
    return {key.strip(): value.strip() for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def default_partition(text: str) -> str | None:
    """The partition that ``sinfo -h -o %P`` marks with a star."""
    return next((line.strip()[:-1] for line in text.splitlines() if line.strip().endswith("*")), None)


def names_in(text: str) -> tuple[str, ...]:
    """First cells of ``sacctmgr -n -P``, each once."""
    cells = (line.partition("|")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(cell for cell in cells if cell))


def reservations_in(text: str) -> tuple[str, ...]:
    """Names in what ``scontrol show reservation`` prints."""
    return tuple(re.findall(r"ReservationName=(\S+)", text))


def expected_start(stderr: str) -> tuple[str, tuple[str, ...]] | None:
    """Time and nodes in what ``sbatch --test-only`` says; None if it says neither."""
    found = re.search(r"to start at (\S+) using \d+ processors on (?:nodes )?(\S+)", stderr)
    return (found.group(1), nodes_in(found.group(2))) if found is not None else None


_SHORT = {"partition": "p", "account": "A", "qos": "q", "constraint": "C", "overcommit": "O"}


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit."""

    path: str
    """Dotted path of the setting."""
    message: str
    """What is wrong, and what there is."""
    certain: bool = True
    """Whether SLURM would refuse the job, or keep it waiting for ever; all others are warnings."""


@dataclass(frozen=True)
class Site:
    """What one cluster has said."""

    cluster: str | None = None
    """Its name, if the job names clusters."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """As ``scontrol show config`` has them."""
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    default: str | None = None
    """The partition of jobs that name none."""
    accounts: Collection[str] | None = None
    """Accounts that this user may use; None if that is not known, as without slurmdbd."""
    qos: Collection[str] | None = None
    reservations: Collection[str] | None = None
    clusters: Collection[str] | None = None
    """All clusters if this one does not exist, else None."""
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
    """A sentence: something does not exist, what was perhaps meant, and what exists."""
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in there], n=1)
    meant = next((one for one in there if near and one.lower() == near[0]), None)
    shown = ", ".join(sorted(there)[:30]) + (" ..." if len(there) > 30 else "")
    hint = f"; did you mean {meant!r}?" if meant else ""
    return f"there is no {kind} {name!r}{hint} (there {'are' if len(there) > 1 else 'is'}: {shown or 'none'})"


def _partitions(plan: Plan, partitions: list[Partition]) -> Iterator[Finding]:
    """The job needs to fit in only one partition."""
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
    for name in nodes_in(asked_of(plan).exclude or ""):
        if partition.names and name not in partition.names:
            yield Finding("slurm.exclude", f"{where} has no node {name}: nothing is left out by it", certain=False)


def _names(plan: Plan, site: Site) -> Iterator[Finding]:
    """Reservation, account and QOS, if SLURM can say whether they exist."""
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


@dataclass(frozen=True)
class Examined:
    """What SLURM says of one job."""

    sites: Sequence[Site]
    findings: Sequence[Finding]
    trial: Answer | None = None
    """What ``sbatch --test-only`` has said; None if it was not asked."""

    @property
    def silent(self) -> str | None:
        """Why SLURM could not be asked; None if it could."""
        return next((site.fault for site in self.sites if site.fault is not None), None)

    @property
    def certain(self) -> list[Finding]:
        """What keeps the job from ever running."""
        return [finding for finding in self.findings if finding.certain]

    def warnings(self) -> list[str]:
        """All that people should know, a sentence each."""
        said = [f"{finding.path}: {finding.message}" for finding in self.findings if not finding.certain]
        if self.silent is None:
            return said
        return [*said, f"whether SLURM has all that the job names was not checked, because it could not be asked: {self.silent}"]


class Examiner:
    """Asks about several jobs, perhaps variants of one, each question once."""

    def __init__(self, environment: Mapping[str, str], seconds: float = SECONDS) -> None:
        self._environment = environment
        self._seconds = seconds
        self._sites: dict[str | None, Site] = {}
        self._trials: dict[str, Answer] = {}

    def examine(self, plan: Plan) -> Examined:
        """Ask about a plan whose backend is slurm."""
        clusters = asked_of(plan).clusters
        names: list[str | None] = [*clusters.split(",")] if clusters and clusters.lower() != "all" else [None]
        sites = [self.site(name) for name in names]
        if any(site.fault is not None for site in sites):
            return Examined(sites, [])
        found = _of_clusters([(site, findings(plan, site)) for site in sites])
        trial = self._trial(plan)
        if any(finding.certain for finding in found) or trial.ok:
            return Examined(sites, found, trial)
        if (said := said_in_trial(trial)) is not None:
            trials = refused(said)
            found = [*(finding for finding in found if finding.path != trials.path), trials]
        return Examined(sites, found, trial)

    def site(self, cluster: str | None = None) -> Site:
        """What one cluster has, asked once."""
        if cluster not in self._sites:
            self._sites[cluster] = query_site(Reach.of(self._environment, cluster), self._seconds)
        return self._sites[cluster]

    def _trial(self, plan: Plan) -> Answer:
        text = script(plan, 1)
        key = "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH") and plan.job.id not in line)
        if key not in self._trials:
            reach = Reach.of(self._environment)
            self._trials[key] = reach.ask(("sbatch", "--test-only"), stdin=text, timeout=self._seconds)
        return self._trials[key]


def _of_clusters(found: Sequence[tuple[Site, Sequence[Finding]]]) -> list[Finding]:
    """The job needs to fit in only one cluster, but every named cluster must exist."""
    absent = [finding for site, some in found if site.clusters is not None for finding in some]
    fits = [some for _, some in found if not any(finding.certain for finding in some)]
    if absent or not fits:
        return absent or [_named(site, finding) for site, some in found for finding in some if finding.certain]
    return list(fits[0])


def _named(site: Site, finding: Finding) -> Finding:
    return finding if site.cluster is None else replace(finding, message=f"cluster {site.cluster}: {finding.message}")


def said_in_trial(answer: Answer) -> str | None:
    """Why SLURM would refuse the job, in its own words; None if it does not answer."""
    lines = [line.strip() for line in answer.stderr.splitlines()]
    said = [re.sub(r"^(allocation failure|sbatch: error|sbatch: fatal|sbatch): ", "", line)
            for line in lines if line.startswith(("allocation failure: ", "sbatch: "))]  # fmt: skip
    busy = any(re.search(r"contact|timed out|connect|transmitted|communicat|database", line, re.IGNORECASE) for line in said)
    return None if busy or not said or answer.code is None else "; ".join(dict.fromkeys(said))


def query_site(reach: Reach, timeout: float = SECONDS) -> Site:
    """Ask one cluster everything at once."""
    questions = {
        "config": ("scontrol", "show", "config"),
        "partitions": ("sinfo", "-a", "-o", SINFO_FORMAT),
        "default": ("sinfo", "-h", "-o", "%P"),
        "reservations": ("scontrol", "show", "reservation"),
    }
    answers = _ask_all(questions, partial(reach.ask, timeout=timeout))
    config = answers["config"]
    if reach.cluster and "no cluster" in config.stderr.lower():
        clusters = _database(reach, timeout, {"clusters": ("show", "cluster", "format=cluster")})["clusters"]
        return Site(reach.cluster, clusters=clusters or ())
    if not config.ok or "ClusterName" not in config.stdout:
        return Site(reach.cluster, fault=config.complaint)
    settings = parse_config(config.stdout)
    try:
        partitions = parse_partitions(answers["partitions"].stdout)
    except NoAnswer as error:
        said = answers["partitions"]
        return Site(reach.cluster, settings, fault=str(error) if said.ok else said.complaint)
    kept = answers["reservations"]
    site = Site(
        reach.cluster, settings, partitions, default_partition(answers["default"].stdout),
        reservations=reservations_in(kept.stdout) if kept.ok else None,
    )  # fmt: skip
    return _accounted(site, reach, timeout) if settings.get("AccountingStorageType", "").endswith("slurmdbd") else site


def _accounted(site: Site, reach: Reach, timeout: float) -> Site:
    """With the accounts of this user, and all QOS.  An administrator, and whoever has no account, may be shown none."""
    name = site.settings.get("ClusterName", "")
    mine = ("show", "assoc", f"user={getpass.getuser()}", f"cluster={name}", "format=account")
    found = _database(reach, timeout, {"accounts": mine, "qos": ("show", "qos", "format=name")})
    return replace(site, accounts=found["accounts"] or None, qos=found["qos"] or None)


def _database(reach: Reach, timeout: float, questions: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...] | None]:
    """What slurmdbd knows, which knows all clusters: names by question, None if it did not answer."""
    central = replace(reach, cluster=None)
    names = {key: ("sacctmgr", "-n", "-P", *words) for key, words in questions.items()}
    answers = _ask_all(names, partial(central.ask, timeout=timeout))
    return {key: names_in(answer.stdout) if answer.ok else None for key, answer in answers.items()}


def _ask_all(questions: Mapping[str, Sequence[str]], ask: Callable[[Sequence[str]], Answer]) -> dict[str, Answer]:
    with ThreadPoolExecutor(len(questions)) as pool:
        return dict(zip(questions, pool.map(ask, questions.values()), strict=True))


def check(jobs: Sequence[tuple[Spec, Plan]], environment: Mapping[str, str]) -> list[str]:
    """Ask about jobs that are about to be submitted, without those of other backends.

    Returns:
        What people should know, each sentence once.

    Raises:
        PlanError: naming with file, line and key what could never run.
    """
    examiner = Examiner(environment)
    warnings: dict[str, None] = {}
    for spec, plan in jobs:
        if plan.launch.backend != "slurm":
            continue
        examined = examiner.examine(plan)
        if examined.certain:
            raise PlanError([spec.problem(finding.path, finding.message) for finding in examined.certain])
        warnings.update(dict.fromkeys(examined.warnings()))
    return list(warnings)

"""SLURM: partitions, limits, PMI types, accounting, and what a job asks for against what there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.doctor.checks import Check, words
from launcher.errors import LauncherError
from launcher.plan import Plan
from launcher.progress import duration
from launcher.slurm import commands
from launcher.slurm.answers import NoAnswer
from launcher.slurm.commands import Answer
from launcher.slurm.script import SPARE_SECONDS, sbatch_argv, script
from launcher.slurm.site import (
    SINFO_FORMAT,
    Partition,
    expected_start,
    parse_config,
    parse_partitions,
)
from launcher.slurm.way import parse_types
from launcher.spec import Spec

Ask = Callable[[Sequence[str]], Answer]


def checks(spec: Spec | None, ask: Ask = commands.call) -> list[Check]:
    """All that SLURM says, and what of it a job's spec does not fit.

    Args:
        spec: a job, where one is given.
        ask: runs a program; by default for real.
    """
    plan = _plan(spec)
    if not commands.installed():
        state = "missing" if plan is not None else "note"
        return [Check("SLURM", state, commands.ABSENT, "jobs of every other backend run here all the same")]  # type: ignore[arg-type]
    config = ask(("scontrol", "show", "config"))
    if not config.ok or "ClusterName" not in config.stdout:
        fix = "`scontrol ping` shows whether the controller runs; jobs that are under way go on without it"
        return [Check("SLURM", "missing", f"no answer: {config.complaint}", fix)]
    settings = parse_config(config.stdout)
    found = [_cluster(settings), _accounting(settings), _requeue(settings), _types(ask)]
    try:
        partitions = parse_partitions(ask(("sinfo", "-a", "-o", SINFO_FORMAT)).stdout)
    except NoAnswer as error:
        return [*found, Check("partitions", "missing", str(error), "`sinfo` by itself shows more")]
    found += [_partition(partition) for partition in partitions.values()]
    if plan is not None:
        default = _default(ask)
        found += [*fit(plan, partitions, default), *_names(plan, ask, settings), _wait(plan, ask)]
    return found


def _plan(spec: Spec | None) -> Plan | None:
    if spec is None:
        return None
    from launcher import facts
    from launcher.paths import JobPaths, jobs_root, new_id
    from launcher.planning import make_plan

    plan = make_plan(spec, facts.collect(), JobPaths(jobs_root(None) / new_id(spec.name)))
    return plan if plan.backend == "slurm" else None


def _cluster(settings: Mapping[str, str]) -> Check:
    version = settings.get("SLURM_VERSION", "of unknown version")
    name, wait = settings.get("ClusterName", "?"), settings.get("KillWait", "?")
    return Check("SLURM", "ok", f"{version}, cluster {name}, KillWait {wait}")


def _accounting(settings: Mapping[str, str]) -> Check:
    kind = settings.get("AccountingStorageType", "")
    if kind.endswith("none") or not kind or kind == "(null)":
        age = settings.get("MinJobAge", "a while")
        return Check("accounting", "ok", f"none: SLURM forgets a job {age} after its end, the job's own directory does not")
    return Check("accounting", "ok", kind.partition("/")[2] or kind)


def _requeue(settings: Mapping[str, str]) -> Check:
    modes = f"preemption {settings.get('PreemptMode', '?')}, JobRequeue {settings.get('JobRequeue', '?')}"
    return Check("requeue", "ok", modes)


def _types(ask: Ask) -> Check:
    answer = ask(("srun", "--mpi=list"))
    types = [kind for kind in parse_types(answer.stdout + answer.stderr) if kind != "none"]
    if not {"pmix", "pmi2"} & {kind.partition("_")[0] for kind in types}:
        return Check("srun --mpi", "note", ", ".join(types) or "none", "ranks are started by mpirun inside the allocation")
    return Check("srun --mpi", "ok", f"{', '.join(types)}; which of them works with the job's MPI is tried inside the job")


def _partition(partition: Partition) -> Check:
    limit = "no time limit" if partition.limit is None else f"at most {duration(partition.limit)}"
    size = f"{partition.cpus} cores, {partition.memory / 1024:.0f} GiB" + (f", {partition.gpus} GPUs" if partition.gpus else "")
    found = f"{words(partition.nodes, 'node')} ({partition.usable} usable) of up to {size}; {limit}"
    if not partition.up:
        return Check(f"partition {partition.name}", "note", f"{found}; takes no jobs to run at present", "use another one")
    return Check(f"partition {partition.name}", "ok", found)


def _default(ask: Ask) -> str | None:
    lines = [line.strip() for line in ask(("sinfo", "-h", "-o", "%P")).stdout.splitlines()]
    return next((line[:-1] for line in lines if line.endswith("*")), None)


def fit(plan: Plan, partitions: Mapping[str, Partition], default: str | None) -> Iterator[Check]:
    """What the job asks for and its partition does not have."""
    slurm = plan.slurm or {}
    names = [name for name in (slurm.get("partition") or default or "").split(",") if name]
    unknown = [name for name in names if name not in partitions]
    if unknown:
        there = ", ".join(partitions) or "none"
        yield Check("slurm.partition", "missing", f"there is no partition {', '.join(unknown)}", f"there are: {there}")
        return
    faults = [list(_lacks(plan, partitions[name])) for name in names]
    if faults and all(faults):
        for key, found in faults[0]:
            yield Check(key, "missing", found, "ask for less, or for another partition (see the lines above)")
    elif names:
        yield Check("the job", "ok", f"fits into partition {', '.join(names)}")


def _lacks(plan: Plan, partition: Partition) -> Iterator[tuple[str, str]]:
    slurm = plan.slurm or {}
    where = f"partition {partition.name}"
    nodes = slurm.get("nodes") or 1
    per_node = slurm.get("ranks_per_node") or -(-plan.ranks // nodes)
    if nodes > partition.nodes:
        yield "slurm.nodes", f"{nodes} nodes are asked for, {where} has {partition.nodes}"
    if slurm.get("nodes") and per_node * plan.threads_per_rank > partition.cpus:
        asked = f"{per_node} ranks of {words(plan.threads_per_rank, 'core')} a node"
        yield "resources.ranks", f"{asked} are asked for, {where} has {partition.cpus} cores a node"
    if plan.time_limit is not None and partition.limit is not None and plan.time_limit + SPARE_SECONDS > partition.limit:
        asked = f"{duration(plan.time_limit)} and {SPARE_SECONDS:.0f} s to end in"
        yield "resources.time_limit", f"{asked} are asked for, {where} allows {duration(partition.limit)}"
    if (slurm.get("memory") or 0) > partition.memory * 2**20:
        yield "slurm.memory", f"{slurm['memory'] / 2**30:.1f} GiB a node are asked for, {where} has {partition.memory / 1024:.1f}"
    gpus = slurm.get("gpus_per_node") or (plan.gpus_per_rank or 0) * per_node
    if gpus > partition.gpus:
        yield "slurm.gpus_per_node", f"{gpus} GPUs a node are asked for, {where} has {partition.gpus}"
    if not partition.up:
        yield "slurm.partition", f"{where} takes no jobs to run at present"


def _names(plan: Plan, ask: Ask, settings: Mapping[str, str]) -> Iterator[Check]:
    """Reservation, account and QOS, where SLURM can say whether they exist."""
    slurm = plan.slurm or {}
    if slurm.get("reservation"):
        answer = ask(("scontrol", "show", "reservation", slurm["reservation"]))
        if not answer.ok:
            yield Check("slurm.reservation", "missing", f"there is no {slurm['reservation']}", "`scontrol show reservation`")
    if not settings.get("AccountingStorageType", "").endswith("slurmdbd"):
        return
    for key, column in (("account", "account"), ("qos", "name")):
        if slurm.get(key):
            answer = ask(("sacctmgr", "-n", "-P", "show", key, f"format={column}"))
            names = answer.stdout.split()
            if answer.ok and slurm[key] not in names:
                yield Check(f"slurm.{key}", "missing", f"there is no {slurm[key]}", f"there are: {', '.join(names) or 'none'}")


def _wait(plan: Plan, ask: Ask) -> Check:
    """When the job would start, if it were submitted now."""
    try:
        text = script(plan, 1)
    except LauncherError as error:
        return Check("expected start", "missing", str(error), "change the spec")
    answer = commands.call((*sbatch_argv("/")[:1], "--test-only"), stdin=text) if ask is commands.call else ask(("sbatch", text))
    start = expected_start(answer.stderr)
    if start is None:
        return Check("expected start", "missing", f"SLURM would refuse the job: {answer.complaint}", "change the spec")
    begins, nodes = start
    try:
        left = time.mktime(time.strptime(begins, "%Y-%m-%dT%H:%M:%S")) - time.time()
    except ValueError:
        left = 0.0
    when = "at once" if left < 60 else f"in about {duration(left)}"
    return Check("expected start", "ok", f"{when} ({begins}), on {', '.join(nodes[:4])}{' ...' if len(nodes) > 4 else ''}")

"""SLURM: partitions, limits, PMI types, accounting, and what a job asks for against what there is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping

from launcher.cli.doctor.checks import Check, State
from launcher.cli.doctor.job import plan_of
from launcher.host.program import Answer
from launcher.host.text import counted, duration
from launcher.jobdir.plan import Plan
from launcher.slurm import commands
from launcher.slurm.check import Examined, Examiner, Partition, Site, expected_start, fitting, said_in_trial
from launcher.slurm.commands import Reach
from launcher.slurm.start_method import parse_types
from launcher.spec.model import Spec


def checks(spec: Spec | None) -> list[Check]:
    """All that SLURM says, and what of it a job's spec does not fit.

    Args:
        spec: a job, if one is given.
    """
    plan = _plan(spec)
    if not commands.installed():
        state: State = "missing" if plan is not None else "note"
        return [Check("SLURM", state, commands.ABSENT, "jobs of every other backend run here all the same")]
    examiner = Examiner(os.environ, commands.TIMEOUT)
    examined = examiner.examine(plan) if plan is not None else None
    sites = examined.sites if examined is not None else [examiner.site()]
    found = [check for site in sites for check in _site(site)]
    return [*found, *_job(plan, examined)] if plan is not None and examined is not None else found


def _site(site: Site) -> Iterator[Check]:
    if site.clusters is not None:
        return
    name = "SLURM" if site.cluster is None else f"SLURM {site.cluster}"
    if site.fault is not None:
        fix = "`scontrol ping` shows whether the controller runs; jobs that are under way go on without it"
        yield Check(name, "missing", f"no answer: {site.fault}", fix)
        return
    yield _cluster(name, site.settings)
    yield _accounting(site.settings)
    yield _requeue(site.settings)
    yield _types(Reach.of(os.environ).ask(("srun", "--mpi=list")) if site.cluster is None else None)
    yield from (_partition(partition) for partition in site.partitions.values())


def _job(plan: Plan, examined: Examined) -> Iterator[Check]:
    """What the job asks for, and when it would start."""
    if examined.silent is not None:
        return
    for finding in examined.findings:
        fix = "ask for less, or for what there is" if finding.certain else "no more than a hint"
        yield Check(finding.path, "missing" if finding.certain else "note", finding.message, fix)
    if not examined.certain:
        names = ", ".join(dict.fromkeys(name for site in examined.sites for name in fitting(plan, site)))
        yield Check("the job", "ok", f"fits into partition {names}" if names else "fits")
    if examined.trial is not None:
        yield _wait(examined.trial)


def _plan(spec: Spec | None) -> Plan | None:
    plan = plan_of(spec)[0] if spec is not None else None
    return plan if plan is not None and plan.launch.backend == "slurm" else None


def _cluster(title: str, settings: Mapping[str, str]) -> Check:
    version = settings.get("SLURM_VERSION", "of unknown version")
    name, wait = settings.get("ClusterName", "?"), settings.get("KillWait", "?")
    return Check(title, "ok", f"{version}, cluster {name}, KillWait {wait}")


def _accounting(settings: Mapping[str, str]) -> Check:
    kind = settings.get("AccountingStorageType", "")
    if kind.endswith("none") or not kind or kind == "(null)":
        age = settings.get("MinJobAge", "a while")
        return Check("accounting", "ok", f"none: SLURM forgets a job {age} after its end, the job's own directory does not")
    return Check("accounting", "ok", kind.partition("/")[2] or kind)


def _requeue(settings: Mapping[str, str]) -> Check:
    modes = f"preemption {settings.get('PreemptMode', '?')}, JobRequeue {settings.get('JobRequeue', '?')}"
    return Check("requeue", "ok", modes)


def _types(answer: Answer | None) -> Check:
    if answer is None:
        return Check("srun --mpi", "ok", "found inside the job, as the clusters are named in it")
    types = [kind for kind in parse_types(answer.stdout + answer.stderr) if kind != "none"]
    if not {"pmix", "pmi2"} & {kind.partition("_")[0] for kind in types}:
        return Check("srun --mpi", "note", ", ".join(types) or "none", "ranks are started by mpirun inside the allocation")
    return Check("srun --mpi", "ok", f"{', '.join(types)}; which of them works with the job's MPI is tried inside the job")


def _partition(partition: Partition) -> Check:
    limit = "no time limit" if partition.limit is None else f"at most {duration(partition.limit)}"
    size = f"{partition.cpus} cores, {partition.memory / 1024:.0f} GiB" + (f", {partition.gpus} GPUs" if partition.gpus else "")
    found = f"{counted(partition.nodes, 'node')} ({partition.usable} usable) of up to {size}; {limit}"
    if not partition.up:
        return Check(f"partition {partition.name}", "note", f"{found}; takes no jobs to run at present", "use another one")
    return Check(f"partition {partition.name}", "ok", found)


def _wait(answer: Answer) -> Check:
    """When the job would start, if it were submitted now."""
    start = expected_start(answer.stderr)
    if start is None:
        refused = said_in_trial(answer)
        said = f"SLURM would refuse the job: {refused}" if refused else f"SLURM does not say: {answer.complaint}"
        return Check("expected start", "missing" if refused else "note", said, "change the spec")
    begins, nodes = start
    try:
        left = time.mktime(time.strptime(begins, "%Y-%m-%dT%H:%M:%S")) - time.time()
    except ValueError:
        left = 0.0
    when = "at once" if left < 60 else f"in about {duration(left)}"
    return Check("expected start", "ok", f"{when} ({begins}), on {', '.join(nodes[:4])}{' ...' if len(nodes) > 4 else ''}")

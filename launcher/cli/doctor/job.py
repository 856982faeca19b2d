"""A job against this host and its own hosts: whether it can be planned, and whether each host answers over ssh."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from launcher.attempt import remote
from launcher.cli.doctor import host as this_host
from launcher.cli.doctor.checks import Check
from launcher.cli.texts import placement_text
from launcher.errors import PlanError, UsageError
from launcher.jobdir import claim
from launcher.jobdir.paths import JobPaths, jobs_root, new_id
from launcher.jobdir.plan import Plan
from launcher.plan import facts, preflight
from launcher.plan.planning import make_plan
from launcher.spec.model import NetworkSettings, Spec


def checks(specs: Sequence[Spec], jobs_dir: str | None = None) -> list[Check]:
    """The job, or the first of its variants, which differ in what no host has to know; then a line for each of its hosts."""
    spec = specs[0]
    try:
        plan, job = plan_of(spec, jobs_dir)
        preflight.check(plan, os.environ, spec)
    except PlanError as error:
        return [Check("job", "missing", str(error), "`hvdgrab-launch validate` checks the file alone")]
    planned = [Check("job", "ok", f"{spec.name}: {placement_text(plan)}"), *wire_checks(spec.network)]
    return [*planned, *host_checks(plan, job)] if remote.other_hosts(plan) else planned


def plan_of(spec: Spec, jobs_dir: str | None = None) -> tuple[Plan, JobPaths]:
    """The plan of a job, and the directory that it would have; a `PlanError` says why there is none."""
    job = JobPaths(jobs_root(jobs_dir) / new_id("doctor"))
    return make_plan(spec, facts.collect(spec.backend.mpirun), job), job


def wire_checks(wanted: NetworkSettings, net: Path = this_host.NET, infiniband: Path = this_host.INFINIBAND) -> list[Check]:
    """Whether the interfaces and UCX devices that the job names are there."""
    cards = sorted(path.name for path in net.iterdir()) if net.is_dir() else []
    ports = [f"{port.device}:{port.number}" for port in this_host.ports(infiniband)]
    checks = [
        _absent("network.interface", wanted.interface, cards),
        _absent("network.nccl_socket_ifname", wanted.nccl_socket_ifname, cards, beginnings=True),
        _absent("network.ucx_devices", wanted.ucx_devices, ["all", *ports, *cards]),
    ]
    return [check for check in checks if check is not None]


def _absent(setting: str, value: str | None, there: Sequence[str], *, beginnings: bool = False) -> Check | None:
    """Names that are not there.  Subnets are for MPI to judge, and exclusions for NCCL, which also takes beginnings of names."""
    names = [name for name in (value or "").split(",") if name and "/" not in name and name[0] not in "^="]
    absent = [name for name in names if not any(one == name or (beginnings and one.startswith(name)) for one in there)]
    if not absent:
        return None
    fix = f"there are: {', '.join(there) or 'none'}; names must be the same on every host"
    return Check(setting, "missing", f"there is no {' and no '.join(absent)} on this host", fix)


def host_checks(plan: Plan, job: JobPaths) -> list[Check]:
    """Ask every host at once, with a job directory that is there for the question alone."""
    attempt = job.attempt(1)
    try:
        job.create()
        claim.take(attempt)
        answers = remote.check(plan, attempt, lambda: False)
    except (OSError, UsageError) as error:
        return [Check("hosts", "missing", str(error), "name a directory that can be written in $HVDGRAB_JOBS")]
    finally:
        shutil.rmtree(job.root, ignore_errors=True)
    return [_host(host, answers) for host in remote.other_hosts(plan)]


def _host(host: str, answers: remote.Hosts) -> Check:
    faults = [fault for fault in answers.faults if fault.host == host]
    if faults:
        found = "; ".join(fault.what for fault in faults)
        return Check(f"host {host}", "missing", found, "; ".join(dict.fromkeys(fault.remedy for fault in faults)))
    return Check(f"host {host}", "ok", f"answers as {answers.names.get(host, host)}, sees the job directory, can start ranks")

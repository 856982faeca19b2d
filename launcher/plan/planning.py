"""From a spec and the facts of a host to a frozen plan.

`make_plan` is pure: it reads no file and no environment, so that the same spec and facts always give the same plan.
`next_attempt` makes the plan of a later attempt from an earlier one's, without the host's facts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from launcher.attempt.backends import BACKENDS, choose, command_of
from launcher.errors import PlanError
from launcher.jobdir import variables
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import PLAN_VERSION, Plan
from launcher.plan.checks import check_root, check_spec
from launcher.plan.facts import Facts
from launcher.plan.layout import Layout, make_layout, ssh_command
from launcher.plan.mpi import network_args, network_environment
from launcher.plan.spread import SpreadError, spread, without
from launcher.spec.model import Spec
from launcher.spec.sections import SlurmSettings
from launcher.spec.variables import scrubbed


def make_plan(spec: Spec, facts: Facts, job: JobPaths, attempt: int = 1, excluded_hosts: Collection[str] = ()) -> Plan:
    """Decide everything.

    Args:
        spec: the validated spec.
        facts: the host.
        job: where the job directory will be.
        attempt: which start of the job this is, from 1.
        excluded_hosts: hosts of the spec that are avoided.

    Raises:
        PlanError: where a consent is missing, or the host cannot run the spec; with file and line where they are known.
    """
    kind = spec.backend.kind
    slurm = kind == "slurm" or (kind == "auto" and spec.slurm is not None)
    inside = facts.allocation if kind in ("auto", "slurm") and not spec.resources.hosts else None
    layout = make_layout(spec, facts.cores, slurm=slurm, allocation=inside, excluded=excluded_hosts)
    if inside is not None:
        backend, reason = "srun", "this is an allocation of SLURM"
    else:
        backend, reason = ("slurm", _slurm_reason(spec)) if slurm else _backend(spec, facts, layout)
    check_spec(spec, facts, backend, layout.training)
    draft = _draft(spec, facts, job, layout, backend, reason)
    return _completed(replace(draft, attempt=attempt, excluded_hosts=tuple(sorted(excluded_hosts))), job)


def next_attempt(plan: Plan, attempt: int, excluded_hosts: Collection[str] = ()) -> Plan:
    """The plan by which the same job is started again.

    Args:
        plan: of any earlier attempt.
        attempt: the number of the new one.
        excluded_hosts: hosts that it avoids; those that the earlier attempts avoided do not count any more.

    Raises:
        PlanError: where too few hosts are left.
    """
    again = replace(plan, attempt=attempt, excluded_hosts=tuple(sorted(excluded_hosts)))
    if plan.offered_hosts:
        again = _elsewhere(again)
    return _completed(again, JobPaths(Path(plan.job_dir)))


def _elsewhere(plan: Plan) -> Plan:
    """The plan on the hosts that are left."""
    wanted, fewest = plan.wanted_ranks, plan.restart["min_ranks"]
    try:
        left, training = without(
            plan.offered_hosts, plan.excluded_hosts, wanted, plan.server_ranks, fewest, plan.may_oversubscribe
        )
        ranks = training + plan.server_ranks
        hosts = spread(left, ranks, plan.may_oversubscribe)
    except SpreadError as error:
        raise PlanError(str(error)) from None
    oversubscribed = ranks > sum(host.slots for host in left)
    return replace(plan, hosts=hosts, ranks=ranks, oversubscribed=oversubscribed)


def _completed(draft: Plan, job: JobPaths) -> Plan:
    """The plan with all that follows from its other parts: variables of the attempt, files, argv."""
    attempt = job.attempt(draft.attempt)
    values = draft.environment | {
        variables.ATTEMPT: str(draft.attempt),
        variables.PROGRESS: str(attempt.progress),
        variables.FINISHED: str(job.finished),
    }
    files = (job.spec, job.plan, attempt.plan, job.events, *(job.rank_log(rank) for rank in range(draft.ranks)))
    plan = replace(draft, environment=values, files=tuple(str(path) for path in files), argv=())
    if plan.backend not in BACKENDS:
        return plan
    argv, further = command_of(plan)
    return replace(plan, argv=argv, environment=values | further)


def _draft(spec: Spec, facts: Facts, job: JobPaths, layout: Layout, backend: str, reason: str) -> Plan:
    flavour, version = (facts.mpirun.flavour, facts.mpirun.version) if facts.mpirun and backend != "local" else ("", ())
    slurm = backend in ("slurm", "srun")
    removed = scrubbed(facts.environment)
    return Plan(
        version=PLAN_VERSION,
        job_id=job.id,
        job_dir=str(job.root),
        name=spec.name,
        attempt=1,
        spec_sha256=spec.sha256,
        group=spec.group,
        priority=spec.priority,
        depends_on=tuple(spec.depends_on),
        host=facts.host,
        backend=backend,
        backend_reason=reason,
        launcher_path=_launcher_path(backend, facts),
        mpi_flavour=flavour,
        mpi_version=version,
        ranks=layout.ranks,
        wanted_ranks=layout.wanted,
        server_ranks=layout.server,
        hosts=layout.hosts,
        offered_hosts=layout.offered,
        excluded_hosts=(),
        ssh_command=ssh_command(spec.resources.ssh) if layout.offered else (),
        cores=facts.cores,
        oversubscribed=layout.oversubscribed,
        may_oversubscribe=spec.resources.oversubscribe,
        allow_root=spec.resources.allow_root if slurm else check_root(spec, backend, facts.root),
        binding=spec.resources.binding,
        threads_per_rank=layout.threads,
        gpus_per_rank=spec.resources.gpus_per_rank,
        time_limit=spec.resources.time_limit,
        hang_after=spec.restart.hang_after,
        checkpoint_signal=spec.checkpoint.signal,
        before_limit=spec.checkpoint.before_limit,
        require_finished=spec.checkpoint.require_finished,
        restart=spec.restart.plain(),
        slurm=(spec.slurm or SlurmSettings()).plain() if slurm else None,
        extra_args=tuple(spec.backend.extra_args),
        network_args=network_args(spec.network, flavour, version) if backend in ("mpirun", "horovodrun") else (),
        python=facts.python,
        argv=(),
        command=resolve_command(spec.command, facts.python),
        server_command=(facts.python, "-m", "hvdgrab.server") if layout.server else (),
        workdir=resolve_workdir(spec.workdir, facts.cwd),
        environment=_environment(spec, facts, job, backend, layout),
        rank_environment=dict(spec.env),
        scrubbed=tuple(name for name in removed if backend != "srun" or not name.startswith("SLURM_")),
        secrets=tuple(spec.secrets),
        files=(),
    )


def _slurm_reason(spec: Spec) -> str:
    return "the spec says so" if spec.backend.kind == "slurm" else "the spec has a slurm section"


def _backend(spec: Spec, facts: Facts, layout: Layout) -> tuple[str, str]:
    """The backend and why; on other hosts even a single rank needs an MPI that starts it."""
    if layout.offered and spec.backend.kind == "local":
        raise spec.refuse("backend.kind", "local starts one rank on this host: remove resources.hosts, or use mpirun")
    try:
        return choose(spec.backend.kind, max(2, layout.ranks) if layout.offered else layout.ranks, facts)
    except PlanError as error:
        raise spec.refuse("", str(error)) from None


def _launcher_path(backend: str, facts: Facts) -> str:
    if backend == "horovodrun":
        return facts.horovodrun or ""
    return facts.mpirun.path if backend == "mpirun" and facts.mpirun else ""


def resolve_command(command: list[str], python: str) -> tuple[str, ...]:
    """The command with ``python`` or ``python3`` as its first word replaced by the launcher's own interpreter."""
    first = python if command[0] in ("python", "python3") else command[0]
    return (first, *command[1:])


def resolve_workdir(workdir: str | None, cwd: str) -> str:
    """The ranks' directory, absolute: relative ones start from where the command was given."""
    if not workdir:
        return cwd
    # Unlike Path.expanduser, this leaves the name of an unknown user as it is; the check of the directory then names it.
    return str(Path(cwd) / os.path.expanduser(workdir))  # noqa: PTH111


def _environment(spec: Spec, facts: Facts, job: JobPaths, backend: str, layout: Layout) -> dict[str, str]:
    values = {
        variables.JOB_ID: job.id,
        variables.JOB_DIR: str(job.root),
        "OMP_NUM_THREADS": str(layout.threads),
        "PYTHONUNBUFFERED": "1",
    }
    grab = spec.grab.model_dump(mode="json", exclude_unset=True)
    if grab:
        values[variables.GRAB] = json.dumps(grab, sort_keys=True)
    if layout.server:
        values[variables.SERVER_RANKS] = str(layout.server)
    if facts.package_root:
        others = [part for part in facts.pythonpath.split(":") if part and part != facts.package_root]
        values["PYTHONPATH"] = ":".join([facts.package_root, *others])
    flavour, version = (facts.mpirun.flavour, facts.mpirun.version) if facts.mpirun and backend != "local" else ("", ())
    return values | network_environment(spec.network, backend, flavour, version) | _search_path(facts, backend)


def _search_path(facts: Facts, backend: str) -> dict[str, str]:
    """PATH with mpirun's directory at its end, where mpirun was found beside the interpreter: horovodrun calls it by name."""
    if backend in ("local", "slurm", "srun") or facts.mpirun is None:
        return {}
    directory = str(Path(facts.mpirun.path).parent)
    return {} if directory in facts.path.split(":") else {"PATH": f"{facts.path}:{directory}"}

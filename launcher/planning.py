"""From a spec and the facts of a host to a frozen plan.

`make_plan` is pure: it reads no file and no environment, so that the same spec and facts always give the same plan.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from hvdgrab.config import SINGLE_RANK_ORDERS
from launcher.backends import choose, command_of
from launcher.environment import scrubbed
from launcher.errors import PlanError
from launcher.facts import Facts
from launcher.paths import JobPaths
from launcher.plan import PLAN_VERSION, Plan
from launcher.spec import Spec

AUTO_RANKS = 4
AUTO_RANKS_ONE_CORE = 2


def make_plan(spec: Spec, facts: Facts, job: JobPaths) -> Plan:
    """Decide everything.

    Args:
        spec: the validated spec.
        facts: the host.
        job: where the job directory will be.

    Raises:
        PlanError: where a consent is missing, or the host cannot run the spec.
    """
    ranks = count_ranks(spec, facts.cores)
    backend, reason = choose(spec.backend.kind, ranks, facts)
    oversubscribed = _check_cores(spec, ranks, facts.cores)
    _check_grab(spec, ranks)
    allow_root = _check_root(spec, backend, facts.root)
    threads = spec.resources.threads_per_rank
    chosen_threads = max(1, facts.cores // ranks) if threads == "auto" else threads
    draft = Plan(
        version=PLAN_VERSION,
        job_id=job.id,
        job_dir=str(job.root),
        name=spec.name,
        host=facts.host,
        backend=backend,
        backend_reason=reason,
        launcher_path=_launcher_path(backend, facts),
        mpi_flavour=facts.mpirun.flavour if facts.mpirun and backend != "local" else "",
        mpi_version=facts.mpirun.version if facts.mpirun and backend != "local" else (),
        ranks=ranks,
        cores=facts.cores,
        oversubscribed=oversubscribed,
        allow_root=allow_root,
        binding=spec.resources.binding,
        threads_per_rank=chosen_threads,
        extra_args=tuple(spec.backend.extra_args),
        python=facts.python,
        argv=(),
        command=resolve_command(spec.command, facts.python),
        workdir=resolve_workdir(spec.workdir, facts.cwd),
        environment={},
        rank_environment=dict(spec.env),
        scrubbed=scrubbed(facts.environment),
        secrets=tuple(spec.secrets),
        files=tuple(str(path) for path in (job.spec, job.plan, job.events, *(job.rank_log(rank) for rank in range(ranks)))),
    )
    argv, backend_environment = command_of(draft)
    return replace(draft, argv=argv, environment=_environment(spec, facts, draft) | backend_environment)


def count_ranks(spec: Spec, cores: int) -> int:
    """Ranks of the job: as given, or for ``auto`` 4, and 2 where only one core is there."""
    ranks = spec.resources.ranks
    if ranks == "auto":
        return AUTO_RANKS if cores > 1 else AUTO_RANKS_ONE_CORE
    return ranks


def _check_cores(spec: Spec, ranks: int, cores: int) -> bool:
    if ranks <= cores:
        return False
    if not spec.resources.oversubscribe:
        raise PlanError(
            f"{ranks} ranks on {cores} core{'s' if cores > 1 else ''} of this host would take turns: write "
            f"`resources.oversubscribe: true` to allow it, or `resources.ranks: {cores}`"
        )
    return True


def _check_root(spec: Spec, backend: str, root: bool) -> bool:
    if not root or backend == "local":
        return False
    if not spec.resources.allow_root:
        raise PlanError(
            f"{backend} is not started as root without consent: write `resources.allow_root: true`, or use another account"
        )
    return True


def _launcher_path(backend: str, facts: Facts) -> str:
    if backend == "horovodrun":
        return facts.horovodrun or ""
    return facts.mpirun.path if backend == "mpirun" and facts.mpirun else ""


def resolve_command(command: list[str], python: str) -> tuple[str, ...]:
    """The command with ``python`` or ``python3`` as its first word replaced by the launcher's own interpreter."""
    first = python if command[0] in ("python", "python3") else command[0]
    return (first, *command[1:])


def _check_grab(spec: Spec, ranks: int) -> None:
    """Refuse now what every rank would refuse later."""
    if spec.grab.order in SINGLE_RANK_ORDERS and ranks > 1:
        raise PlanError(f"grab.order: '{spec.grab.order}' orders a single rank, but there are {ranks}: use id-grab or cd-grab")
    if spec.grab.designated_rank >= ranks:
        raise PlanError(f"grab.designated_rank: there is no rank {spec.grab.designated_rank}, the ranks are 0 … {ranks - 1}")


def resolve_workdir(workdir: str | None, cwd: str) -> str:
    """The ranks' directory, absolute: relative ones start from where the command was given."""
    if not workdir:
        return cwd
    # Unlike Path.expanduser, this leaves the name of an unknown user as it is; the check of the directory then names it.
    return str(Path(cwd) / os.path.expanduser(workdir))  # noqa: PTH111


def _environment(spec: Spec, facts: Facts, draft: Plan) -> dict[str, str]:
    grab = spec.grab.model_dump(mode="json", exclude_unset=True)
    values = {
        "HVDGRAB_JOB_ID": draft.job_id,
        "HVDGRAB_JOB_DIR": draft.job_dir,
        "OMP_NUM_THREADS": str(draft.threads_per_rank),
        "PYTHONUNBUFFERED": "1",
    }
    if grab:
        values["HVDGRAB_GRAB"] = json.dumps(grab, sort_keys=True)
    if facts.package_root:
        others = [part for part in facts.pythonpath.split(":") if part and part != facts.package_root]
        values["PYTHONPATH"] = ":".join([facts.package_root, *others])
    return values | _search_path(facts, draft)


def _search_path(facts: Facts, draft: Plan) -> dict[str, str]:
    """PATH with mpirun's directory at its end, where mpirun was found beside the interpreter: horovodrun calls it by name."""
    if draft.backend == "local" or facts.mpirun is None:
        return {}
    directory = str(Path(facts.mpirun.path).parent)
    return {} if directory in facts.path.split(":") else {"PATH": f"{facts.path}:{directory}"}

"""Ranks inside an allocation of SLURM: started by srun, or by mpirun over the allocation's nodes, as found at run time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from launcher.attempt.backends.base import flags_of, idle_environment, placement, wrapper_command
from launcher.attempt.backends.process import ProcessBackend
from launcher.errors import BackendError
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.slurm import choice
from launcher.slurm.allocation import Allocation
from launcher.slurm.held import asker, why_over
from launcher.slurm.script import sbatch_argv
from launcher.slurm.start_method import STEP_OPTIONS, Way, shared

_BINDING = {"none": "none", "core": "cores", "socket": "sockets", "numa": "ldoms"}


class SrunBackend(ProcessBackend):
    """``srun --mpi=... python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``, or mpirun with the same."""

    name = "srun"

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """What a plan shows: which PMI it is, and whether mpirun takes srun's place, is found inside the allocation."""
        kind = (plan.slurm or {}).get("mpi", "auto")
        return srun_argv(plan, Allocation("0", ("",), (plan.ranks,), (0,), in_step=False, restarts=0), kind), {}

    def start(self, plan: Plan, attempt: AttemptPaths) -> int:
        """Look at the allocation that this process stands in, find a way, and start."""
        here, way = resolve(plan, os.environ)
        pid = super().start(here, attempt)
        with suppress(OSError), attempt.job.backend_log.open("ab") as log:
            log.write(f"hvdgrab-launch: ranks are started by {way.program}: {way.reason}\n".encode())
        return pid


class SlurmBackend(SrunBackend):
    """The same inside a job that the launcher has submitted."""

    name = "slurm"

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """What the launcher executes: sbatch, which reads the script that `launcher.slurm.script` makes."""
        return sbatch_argv(plan.job_dir), {}


def resolve(plan: Plan, environment: Mapping[str, str]) -> tuple[Plan, Way]:
    """The plan with the argv by which it starts in the allocation at hand, and the way that was found.

    Raises:
        BackendError: where there is no allocation, it is too small, or no way works.
    """
    allocation = Allocation.from_environment(environment)
    if allocation is None:
        raise BackendError("this job runs in an allocation of SLURM, but there is none here: SLURM_JOB_ID is not set")
    over = why_over(allocation.job_id, asker(environment)) if plan.backend == "srun" else None
    if over is not None:  # mpirun would start the ranks all the same, on nodes that are others' by now
        raise BackendError(f"{over.reason.replace('runs', 'was to run')}: start it from a new one")
    around = {**environment, **plan.environment}
    mpirun = plan.launcher_path if os.access(plan.launcher_path, os.X_OK) else None
    way = choice.choose(allocation, around, plan.python, (plan.slurm or {}).get("mpi", "auto"), mpirun=mpirun)
    kept = tuple(name for name in environment if name.startswith(STEP_OPTIONS))
    argv, further = (srun_argv(plan, allocation, way.mpi), {}) if way.program == "srun" else mpirun_argv(plan, allocation, way)
    return replace(plan, argv=argv, environment=plan.environment | further, scrubbed=kept), way


def srun_argv(plan: Plan, allocation: Allocation, kind: str) -> tuple[str, ...]:
    """The step that holds all ranks; consecutive ranks share a node.

    A rank that ends badly ends the step, as mpirun does it, so that no other waits for it.
    """
    argv = ["srun", f"--mpi={kind}", f"--ntasks={plan.ranks}"]
    if len(allocation.nodes) > 1:
        argv.append(f"--nodes={min(len(allocation.nodes), plan.ranks)}")
    per_node = -(-plan.ranks // len(allocation.nodes))
    argv += [f"--ntasks-per-node={per_node}"] if max(allocation.tasks) >= per_node else []
    argv += [f"--cpus-per-task={plan.threads_per_rank}", f"--cpu-bind={_BINDING[plan.binding]}"]
    argv += ["--distribution=block", "--kill-on-bad-exit=1", "--wait=0", "--export=ALL", *shared(allocation)]
    argv += ["--overcommit"] if _too_small(plan, allocation) else []
    return (*argv, *wrapper_command(plan))


def mpirun_argv(plan: Plan, allocation: Allocation, way: Way) -> tuple[tuple[str, ...], dict[str, str]]:
    """mpirun over the allocation's nodes, which it finds by itself, and the variables that it needs."""
    assert way.mpirun is not None
    local = replace(plan, mpi_flavour=way.mpirun.flavour, mpi_version=way.mpirun.version)
    local = replace(local, oversubscribed=plan.oversubscribed or plan.ranks > allocation.slots)
    flags = flags_of(local)
    argv = [way.mpirun.path, "-np", str(plan.ranks)]
    argv += flags.root if plan.allow_root else ()
    argv += placement(local, flags)
    argv += flags.oversubscribe if local.oversubscribed else ()
    argv += (*plan.network_args, *plan.extra_args, *wrapper_command(plan))
    return tuple(argv), idle_environment(local, flags) | ({"SLURM_OVERLAP": "1"} if allocation.in_step else {})


def _too_small(plan: Plan, allocation: Allocation) -> bool:
    """Whether ranks must share cores.  Unknown numbers of cores count as enough: SLURM then refuses with its own words."""
    return all(allocation.cpus) and plan.ranks * plan.threads_per_rank > sum(allocation.cpus)

"""Starts ranks inside an allocation of SLURM, by srun or by mpirun over the allocation's nodes, as found at run time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from launcher.attempt.program import Program
from launcher.errors import BackendError
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.plan import argv
from launcher.plan.facts import Allocation
from launcher.plan.mpi import options_of
from launcher.slurm import choice
from launcher.slurm.held import asker, why_over
from launcher.slurm.script import asked_of
from launcher.slurm.start_method import STEP_OPTIONS, Way, shared


def start(plan: Plan, attempt: AttemptPaths) -> Program:
    """Look at the allocation that this process stands in, find a way to start the ranks, and start them.

    Raises:
        BackendError: as `resolve`, or if the program cannot be started.
    """
    here, way = resolve(plan, os.environ)
    program = Program.start(here, attempt)
    with suppress(OSError), attempt.job.backend_log.open("ab") as log:
        log.write(f"hvdgrab-launch: ranks are started by {way.program}: {way.reason}\n".encode())
    return program


def resolve(plan: Plan, environment: Mapping[str, str]) -> tuple[Plan, Way]:
    """The plan with the argv by which it starts in the allocation at hand, and the way that was found.

    Raises:
        BackendError: where there is no allocation, it is too small, or no way works.
    """
    allocation = Allocation.from_environment(environment)
    if allocation is None:
        raise BackendError("this job runs in an allocation of SLURM, but there is none here: SLURM_JOB_ID is not set")
    over = why_over(allocation.job_id, asker(environment)) if plan.launch.backend == "srun" else None
    if over is not None:  # mpirun would start the ranks all the same, on nodes that are others' by now
        raise BackendError(f"{over.reason.replace('runs', 'was to run')}: start it from a new one")
    around = {**environment, **plan.launch.environment}
    mpirun = plan.launch.program if os.access(plan.launch.program, os.X_OK) else None
    way = choice.choose(allocation, around, plan.launch.python, asked_of(plan).mpi, mpirun=mpirun)
    if way.program == "srun":
        words: tuple[str, ...] = srun_argv(plan, allocation, way.mpi)
        further: dict[str, str] = {}
    else:
        words, further = mpirun_argv(plan, allocation, way)
    kept = tuple(name for name in environment if name.startswith(STEP_OPTIONS))
    launch = replace(plan.launch, environment=plan.launch.environment | further, scrubbed=kept)
    return replace(plan, argv=words, launch=launch), way


def srun_argv(plan: Plan, allocation: Allocation, pmi: str) -> tuple[str, ...]:
    """The step that holds all ranks."""
    options = [*shared(allocation), *(["--overcommit"] if _too_small(plan, allocation) else [])]
    nodes, tasks = len(allocation.nodes), max(allocation.tasks)
    return argv.srun(plan.job, plan.placement, plan.launch, pmi, nodes=nodes, tasks=tasks, options=options)


def mpirun_argv(plan: Plan, allocation: Allocation, way: Way) -> tuple[tuple[str, ...], dict[str, str]]:
    """mpirun over the allocation's nodes, which it finds by itself, and the variables that it needs."""
    assert way.mpirun is not None
    mpi = options_of(way.mpirun.flavour, way.mpirun.version)
    crowded = plan.placement.oversubscribed or plan.placement.ranks > allocation.slots
    placement = replace(plan.placement, oversubscribed=crowded)
    options = argv.mpirun_options(placement, plan.launch, mpi)
    words = (way.mpirun.path, "-np", str(placement.ranks), *options, *argv.wrapper(plan.job, plan.launch))
    idle = mpi.oversubscribed_environment if crowded else {}
    return words, {**idle, **({"SLURM_OVERLAP": "1"} if allocation.in_step else {})}


def _too_small(plan: Plan, allocation: Allocation) -> bool:
    """Whether ranks must share cores.  Unknown numbers of cores count as enough: SLURM then refuses with its own words."""
    return all(allocation.cpus) and plan.placement.ranks * plan.placement.threads_per_rank > sum(allocation.cpus)

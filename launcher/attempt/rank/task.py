"""What one rank has to run, as its wrapper reads it from the plan, and the start of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.attempt.rank.output import LogFile, Output
from launcher.host.files import find_executable
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.variables import own_variables

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables in which MPIs and schedulers say which rank this is, in the order in which they are asked."""
EXIT_NOT_STARTED = 126
NO_PARENT = 0
"""Stands among the signals that a wrapper hands to its keeper for: the process that started the wrapper has gone."""


@dataclass(frozen=True)
class Task:
    """One rank's program, and how it is to be ended."""

    command: tuple[bytes, ...]
    environment: dict[bytes, bytes]
    workdir: str
    secrets: tuple[str, ...]
    """Values to hide in the output."""
    time_limit: float | None = None
    """Seconds."""
    checkpoint_signal: str | None = None
    """Name without SIG, such as USR1: what makes the training save its state."""
    before_limit: float = 0.0
    """Seconds between that signal and the end of the time limit."""


def find_rank(environment: Mapping[str, str]) -> int:
    """This process's rank; 0 if no MPI or scheduler says one."""
    for name in RANK_VARIABLES:
        value = environment.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return 0


def read_task(attempt: AttemptPaths, rank: int, inherited: Mapping[str, str]) -> Task:
    """The rank's program from the attempt's plan.

    Args:
        attempt: the attempt.
        rank: the last ones run the plan's server command, if it has such ranks.
        inherited: the wrapper's own environment; the plan's variables are put on top.

    Raises:
        PlanFileError: if the plan cannot be read.
    """
    plan = Plan.of(attempt)
    job, limits, servers = plan.job, plan.limits, plan.placement.server_ranks
    environment = {**inherited, **plan.launch.environment, **job.env, **own_variables(attempt)}
    server = servers > 0 and rank >= plan.placement.ranks - servers
    return Task(
        command=tuple(_bytes(argument) for argument in (job.server_command if server else job.command)),
        environment={_bytes(name): _bytes(value) for name, value in environment.items()},
        workdir=job.workdir,
        secrets=tuple(inherited[name] for name in job.secrets if name in inherited),
        time_limit=limits.time_limit,
        checkpoint_signal=limits.checkpoint_signal,
        before_limit=limits.before_limit,
    )


def _bytes(text: str) -> bytes:
    """The bytes that a text stands for, whatever the locale says: undecodable ones were kept as surrogates."""
    return text.encode("utf-8", "surrogateescape")


def start(task: Task, log: LogFile) -> tuple[subprocess.Popen[bytes], Output]:
    """Start a task's program with both its streams in one pipe.

    Descriptors that mpirun has handed down stay open: MPICH's PMI speaks through one.

    Raises:
        OSError: if the system refuses.
    """
    program = find_executable(task.command[0], task.environment, task.workdir)
    if program is None:
        raise FileNotFoundError(2, "not found, or not executable", os.fsdecode(task.command[0]))
    process = subprocess.Popen(
        task.command,
        executable=program,
        cwd=task.workdir,
        env=task.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        close_fds=False,
        bufsize=0,
    )
    return process, Output.of(process, log, task.secrets)

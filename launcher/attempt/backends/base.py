"""What a backend is: a pure function from plan to argv, and a handle on what was started."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from launcher.errors import PlanError
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.variables import SUPERVISOR, own_variables
from launcher.plan.flavours import Flags, flags_for


class Backend(Protocol):
    """Starts the ranks of a plan in one particular way.

    `command` is called while planning and must not touch the host.  `start` is called once, after the job directory was
    written; `poll` any number of times after it; `stop` at most once, also when the job has ended by itself: it returns when
    no process of the attempt is left on this host, or says which are.
    """

    name: str

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv to execute, and variables that this way of starting needs."""
        ...

    def start(self, plan: Plan, attempt: AttemptPaths) -> int:
        """Start it; returns the process id.  Raises `launcher.errors.BackendError`."""
        ...

    def poll(self) -> int | None:
        """Exit code (128 + n for signal n) once it has ended, else None."""
        ...

    def terminate(self) -> None:
        """Ask it to end; returns at once."""
        ...

    def kill(self) -> None:
        """End the program that starts the ranks, not the ranks; returns at once."""
        ...

    def stop(self, grace: float) -> list[int]:
        """End every process of the attempt: TERM, then after ``grace`` seconds KILL.  Returns ids that could not be ended."""
        ...


def attempt_of(plan: Plan) -> AttemptPaths:
    """The files of the plan's attempt."""
    return JobPaths(Path(plan.job_dir)).attempt(plan.attempt)


def wrapper_command(plan: Plan) -> tuple[str, ...]:
    """What every rank is started as.  The user's command is read from the plan by it, and is on no command line before."""
    return (plan.python, "-m", "launcher.attempt.rank.wrapper", plan.job_dir, str(plan.attempt))


def flags_of(plan: Plan) -> Flags:
    """The options of the plan's mpirun."""
    return flags_for(plan.mpi_flavour, plan.mpi_version)


def placement(plan: Plan, flags: Flags) -> tuple[str, ...]:
    """Binding options, with their numbers filled in."""
    table = flags.binding | flags.overloaded_binding if plan.oversubscribed else flags.binding
    return tuple(option.format(threads=plan.threads_per_rank, ranks=plan.ranks) for option in table[plan.binding])


def host_list(plan: Plan) -> str:
    """The plan's hosts as every mpirun here takes them: ``node1:2,node2:2``."""
    return ",".join(f"{host.name}:{host.slots}" for host in plan.hosts)


def host_options(plan: Plan, flags: Flags) -> tuple[str, ...]:
    """Where the ranks run, how the hosts are reached, and which variables travel there."""
    if not plan.hosts:
        return tuple(option.format(ranks=plan.ranks) for option in flags.here)
    options = [option.format(hosts=host_list(plan)) for option in flags.host_list]
    options += remote_shell_options(plan, flags)
    for name in exported(plan) if flags.export else ():
        options += [flags.export, name]
    return tuple(options)


def remote_shell_options(plan: Plan, flags: Flags) -> list[str]:
    """By which program hosts are reached.

    Raises:
        PlanError: where this MPI would take its path apart.
    """
    shell = str(attempt_of(plan).remote_shell)
    if flags.splits_shell and len(shell.split()) != 1:
        raise PlanError(
            f"the path {plan.job_dir} holds a blank, and Open MPI cannot reach other hosts from there: choose another --jobs-dir"
        )
    return [option.format(shell=shell) for option in flags.remote_shell]


def exported(plan: Plan) -> tuple[str, ...]:
    """Names of the variables that the wrappers on other hosts need, sorted; values travel inside mpirun's own connection."""
    names = {*plan.environment, *own_variables(attempt_of(plan)), SUPERVISOR, *plan.secrets}
    return tuple(sorted(names))


def idle_environment(plan: Plan, flags: Flags) -> dict[str, str]:
    """Variables for ranks that share cores."""
    return dict(flags.oversubscribed_environment) if plan.oversubscribed else {}

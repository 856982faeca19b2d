"""What a backend is: a pure function from plan to argv, and a handle on what was started."""

from __future__ import annotations

from typing import Protocol

from launcher.backends.flavours import Flags, flags_for
from launcher.plan import Plan


class Backend(Protocol):
    """Starts the ranks of a plan in one particular way.

    `command` is called while planning and must not touch the host.  `start` is called once, after the job directory was
    written; `poll` any number of times after it; `stop` at most once, also when the job has ended by itself: it returns when
    no process of the job is left, or says which are.
    """

    name: str

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv to execute, and variables that this way of starting needs."""
        ...

    def start(self, plan: Plan) -> int:
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
        """End every process of the job: TERM, then after ``grace`` seconds KILL.  Returns ids that could not be ended."""
        ...


def wrapper_command(plan: Plan) -> tuple[str, ...]:
    """What every rank is started as.  The user's command is read from the plan by it, and is on no command line before."""
    return (plan.python, "-m", "launcher.process.rank", plan.job_dir)


def flags_of(plan: Plan) -> Flags:
    """The options of the plan's mpirun."""
    return flags_for(plan.mpi_flavour, plan.mpi_version)


def placement(plan: Plan, flags: Flags) -> tuple[str, ...]:
    """Binding options, with their numbers filled in."""
    table = flags.binding | flags.overloaded_binding if plan.oversubscribed else flags.binding
    return tuple(option.format(threads=plan.threads_per_rank, ranks=plan.ranks) for option in table[plan.binding])


def idle_environment(plan: Plan, flags: Flags) -> dict[str, str]:
    """Variables for ranks that share cores."""
    return dict(flags.oversubscribed_environment) if plan.oversubscribed else {}

"""Ranks started by mpirun directly."""

from __future__ import annotations

from launcher.attempt.backends.base import flags_of, host_options, idle_environment, placement, wrapper_command
from launcher.attempt.backends.process import ProcessBackend
from launcher.jobdir.plan import Plan


class MpirunBackend(ProcessBackend):
    """``mpirun -np N ... python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``."""

    name = "mpirun"

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv in the dialect of the plan's MPI."""
        flags = flags_of(plan)
        argv = [plan.launcher_path, "-np", str(plan.ranks), *host_options(plan, flags)]
        argv += flags.root if plan.allow_root else ()
        argv += placement(plan, flags)
        argv += flags.oversubscribe if plan.oversubscribed else ()
        argv += (*plan.network_args, *plan.extra_args, *wrapper_command(plan))
        return tuple(argv), idle_environment(plan, flags)

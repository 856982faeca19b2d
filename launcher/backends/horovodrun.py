"""Ranks started by horovodrun, which writes an mpirun command of its own.

horovodrun hands its command to ``/bin/sh -c``.  What it is given consists of the launcher's own words and of
``backend.extra_args``, each quoted; the names of all variables follow, which is why names that are no identifiers are scrubbed.
It always allows root, so the consent is asked for by the plan alone.
"""

from __future__ import annotations

import shlex

from launcher.backends.base import flags_of, idle_environment, placement, wrapper_command
from launcher.backends.process import ProcessBackend
from launcher.plan import Plan


class HorovodrunBackend(ProcessBackend):
    """``horovodrun --mpi -np N ... python -m launcher.process.rank JOBDIR``."""

    name = "horovodrun"

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv; binding and MPI options travel as one quoted text each."""
        flags = flags_of(plan)
        further = [*(flags.oversubscribe if plan.oversubscribed else ()), *plan.extra_args]
        argv = [plan.launcher_path, "--mpi", "-np", str(plan.ranks)]
        argv += [f"--binding-args={shlex.join(placement(plan, flags))}"]
        argv += [f"--mpi-args={shlex.join(further)}"] if further else []
        return (*argv, *wrapper_command(plan)), idle_environment(plan, flags)

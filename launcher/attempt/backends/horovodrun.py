"""Ranks started by horovodrun, which writes an mpirun command of its own.

horovodrun hands its command to ``/bin/sh -c``.  What it is given consists of the launcher's own words and of
``backend.extra_args``, each quoted; the names of all variables follow, which is why names that are no identifiers are scrubbed.
It always allows root, so the consent is asked for by the plan alone.
"""

from __future__ import annotations

import itertools
import shlex

from launcher.attempt.backends.base import flags_of, host_list, idle_environment, placement, remote_shell_options, wrapper_command
from launcher.attempt.backends.process import ProcessBackend
from launcher.jobdir.plan import Plan


class HorovodrunBackend(ProcessBackend):
    """``horovodrun --mpi -np N ... python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``."""

    name = "horovodrun"

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv; binding and MPI options travel as one quoted text each."""
        flags = flags_of(plan)
        further = [*(flags.oversubscribe if plan.oversubscribed else ()), *plan.network_args, *plan.extra_args]
        argv = [plan.launcher_path, "--mpi", "-np", str(plan.ranks)]
        if plan.hosts:
            argv += ["-H", host_list(plan), *_ssh_options(plan.ssh_command)]
            further = [*remote_shell_options(plan, flags), *further]
        argv += [f"--binding-args={shlex.join(placement(plan, flags))}"]
        argv += [f"--mpi-args={shlex.join(further)}"] if further else []
        return (*argv, *wrapper_command(plan)), idle_environment(plan, flags)


def _ssh_options(ssh: tuple[str, ...]) -> list[str]:
    """horovodrun looks whether the hosts answer, and knows two of ssh's options for that."""
    names = {"-p": "--ssh-port", "-i": "--ssh-identity-file"}
    pairs = itertools.pairwise(ssh)
    return [word for option, value in pairs if option in names for word in (names[option], value)]

"""Start a command as MPI ranks in the allocation at hand: what the batch scripts in ``slurm/`` call.

    python -m launcher.slurm.ranks [--ranks N] [--mpi auto|pmix|pmi2|mpirun] [--show] COMMAND ...
    python -m launcher.slurm.ranks --type

The command is started by srun, under the first PMI type that gives its processes one world, else by mpirun over the same nodes.
This process becomes srun or mpirun: signals and the exit code pass as with these.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from launcher.errors import EXIT_USAGE, BackendError, LauncherError
from launcher.plan.argv import WHOLE_STEP
from launcher.plan.facts import Allocation
from launcher.plan.mpi import options_of
from launcher.slurm.start_method import StartMethod, choose, shared, step_environment


def command_line(allocation: Allocation, method: StartMethod, ranks: int, threads: int, command: Sequence[str]) -> list[str]:
    """The srun or mpirun that starts the ranks.

    Args:
        allocation: where.
        method: as found.
        ranks: how many.
        threads: cores of each.
        command: what each runs.
    """
    if method.program == "srun":
        options = [f"--mpi={method.mpi}", f"--ntasks={ranks}", f"--cpus-per-task={threads}", "--cpu-bind=none"]
        return ["srun", *options, *WHOLE_STEP, *shared(allocation), *command]
    assert method.mpirun is not None
    mpi, crowded = options_of(method.mpirun.flavour, method.mpirun.version), ranks > allocation.slots
    binding = mpi.bind("none", ranks, threads, crowded=crowded)
    return [method.mpirun.path, "-np", str(ranks), *binding, *(mpi.oversubscribe if crowded else ()), *command]


def brief(line: Sequence[str], most: int = 300) -> str:
    """A command for a log: one line, not too long."""
    text = " ".join(shlex.join(line).split())
    return text if len(text) <= most else f"{text[:most]} ..."


def pmi_type(method: StartMethod) -> str:
    """The value for ``srun --mpi``.

    Raises:
        BackendError: if srun starts no ranks here.
    """
    if method.program != "srun":
        what_to_do = "`srun --mpi=list` shows the types, MPI_TYPE=... takes one"
        raise BackendError(f"srun starts no ranks here ({method.reason}): {what_to_do}")
    return method.mpi


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else default


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Entry point; returns only if nothing was started."""
    parser = argparse.ArgumentParser(prog="python -m launcher.slurm.ranks", description="Start MPI ranks in a SLURM allocation.")
    parser.add_argument("--ranks", type=int, help="by default as many as the job has tasks")
    parser.add_argument("--mpi", default="auto", help="a type of `srun --mpi`, or mpirun; by default what works")
    parser.add_argument("--show", action="store_true", help="print what would be started, and start nothing")
    parser.add_argument("--type", action="store_true", help="print the type of `srun --mpi` that works, and start nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what every rank runs")
    chosen = parser.parse_args(argv)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command and not chosen.type:
        parser.error("no command is given")
    allocation = Allocation.from_environment(environment)
    if allocation is None:
        print("there is no allocation of SLURM here: submit the script with sbatch, or call salloc before", file=sys.stderr)
        return EXIT_USAGE
    ranks = chosen.ranks or _whole(environment.get("SLURM_NTASKS"), allocation.slots)
    try:
        method = choose(allocation, environment, sys.executable, chosen.mpi)
        if chosen.type:
            print(pmi_type(method))
            return 0
        line = command_line(allocation, method, ranks, _whole(environment.get("SLURM_CPUS_PER_TASK"), 1), command)
    except LauncherError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    shown = shlex.join(line) if chosen.show else brief(line)
    print(f"{ranks} ranks on {', '.join(allocation.nodes)} ({method.reason}): {shown}", flush=True)
    if not chosen.show:
        os.execvpe(line[0], line, step_environment(environment))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

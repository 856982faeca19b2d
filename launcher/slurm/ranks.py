"""Start a command as MPI ranks in the allocation at hand: what the batch scripts in ``slurm/`` call.

    python -m launcher.slurm.ranks [--ranks N] [--mpi auto|pmix|pmi2|mpirun] [--show] COMMAND ...
    python -m launcher.slurm.ranks --type

The command is started by srun, under the first PMI type that gives its processes one world, else by mpirun over the same nodes.
This process becomes srun or mpirun: signals and the exit code pass as they do with these.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from launcher.errors import EXIT_USAGE, BackendError, LauncherError
from launcher.plan.facts import Allocation
from launcher.plan.mpi import options_of
from launcher.slurm.choice import choose
from launcher.slurm.start_method import Way, shared, step_environment


def command_line(allocation: Allocation, way: Way, ranks: int, threads: int, command: Sequence[str]) -> list[str]:
    """The srun or mpirun that starts the ranks.

    Args:
        allocation: where.
        way: as found.
        ranks: how many.
        threads: cores of each.
        command: what each runs.
    """
    if way.program == "srun":
        options = [f"--mpi={way.mpi}", f"--ntasks={ranks}", f"--cpus-per-task={threads}", "--cpu-bind=none"]
        options += ["--distribution=block", "--kill-on-bad-exit=1", "--wait=0", *shared(allocation)]
        return ["srun", *options, *command]
    assert way.mpirun is not None
    mpi, crowded = options_of(way.mpirun.flavour, way.mpirun.version), ranks > allocation.slots
    binding = mpi.bind("none", ranks, threads, crowded=crowded)
    return [way.mpirun.path, "-np", str(ranks), *binding, *(mpi.oversubscribe if crowded else ()), *command]


def brief(line: Sequence[str], most: int = 300) -> str:
    """A command for a log: one line, not too long."""
    text = " ".join(shlex.join(line).split())
    return text if len(text) <= most else f"{text[:most]} ..."


def pmi_type(way: Way) -> str:
    """The value for ``srun --mpi``.

    Raises:
        BackendError: where srun starts no ranks here.
    """
    if way.program != "srun":
        raise BackendError(f"srun starts no ranks here ({way.reason}): `srun --mpi=list` shows the types, MPI_TYPE=... takes one")
    return way.mpi


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() and int(text) > 0 else default


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Entry point; returns only where nothing was started."""
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
        way = choose(allocation, environment, sys.executable, chosen.mpi)
        if chosen.type:
            print(pmi_type(way))
            return 0
        line = command_line(allocation, way, ranks, _whole(environment.get("SLURM_CPUS_PER_TASK"), 1), command)
    except LauncherError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    shown = shlex.join(line) if chosen.show else brief(line)
    print(f"{ranks} ranks on {', '.join(allocation.nodes)} ({way.reason}): {shown}", flush=True)
    if not chosen.show:
        os.execvpe(line[0], line, step_environment(environment))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

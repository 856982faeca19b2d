"""The command that starts a plan's ranks, for every backend: pure functions from the parts of a plan.

No command holds the user's own command: the wrapper around every rank reads that from the plan.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import PlanError
from launcher.jobdir import variables
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Job, Launch, Placement, Slurm
from launcher.plan.mpi import Options, options_of

WHOLE_STEP = ("--distribution=block", "--kill-on-bad-exit=1", "--wait=0")
"""Options of srun by which consecutive ranks share a node, and a rank that ends badly ends all others."""
_CPU_BIND = {"none": "none", "core": "cores", "socket": "sockets", "numa": "ldoms"}
"""What srun calls the values of ``resources.binding``."""


def command(job: Job, placement: Placement, launch: Launch, slurm: Slurm | None) -> tuple[str, ...]:
    """Build the argv that starts the ranks in the way that ``launch.backend`` names.

    For srun it is what a plan shows: `launcher.slurm.start_method` finds out inside the allocation which PMI works, and whether
    mpirun takes the place of srun.

    Raises:
        PlanError: if the MPI at hand cannot be told where its ranks run.
    """
    match launch.backend:
        case "local":
            return wrapper(job, launch)
        case "mpirun":
            return mpirun(job, placement, launch)
        case "horovodrun":
            return horovodrun(job, placement, launch)
        case "slurm":
            return sbatch(job.dir)
        case _:
            return srun(job, placement, launch, slurm.mpi if slurm is not None else "auto")


def attempt_of(job: Job) -> AttemptPaths:
    """The files of the plan's attempt."""
    return JobPaths(Path(job.dir)).attempt(job.attempt)


def wrapper(job: Job, launch: Launch) -> tuple[str, ...]:
    """Build the command of every rank's wrapper; for a single local rank it is the whole argv."""
    return (launch.python, "-m", "launcher.attempt.rank.wrapper", job.dir, str(job.attempt))


def mpirun(job: Job, placement: Placement, launch: Launch) -> tuple[str, ...]:
    """``mpirun -np N ... python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``, in the dialect of the plan's MPI."""
    mpi = options_of(launch.mpi_flavour, launch.mpi_version)
    where = _where(job, placement, launch, mpi)
    return (launch.program, "-np", str(placement.ranks), *where, *mpirun_options(placement, launch, mpi), *wrapper(job, launch))


def mpirun_options(placement: Placement, launch: Launch, mpi: Options) -> tuple[str, ...]:
    """List all options of mpirun but the number of ranks and their hosts."""
    root = mpi.root if launch.allow_root else ()
    crowded = mpi.oversubscribe if placement.oversubscribed else ()
    return (*root, *_binding(placement, mpi), *crowded, *launch.network_args, *launch.extra_args)


def horovodrun(job: Job, placement: Placement, launch: Launch) -> tuple[str, ...]:
    """``horovodrun --mpi -np N ... python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``; it writes an mpirun command itself.

    horovodrun hands its command to ``/bin/sh -c``: binding and MPI options travel as one quoted text each.  The names of all
    variables follow there, which is why names that are no identifiers are scrubbed.  It always allows root.
    """
    mpi = options_of(launch.mpi_flavour, launch.mpi_version)
    further = [*(mpi.oversubscribe if placement.oversubscribed else ()), *launch.network_args, *launch.extra_args]
    argv = [launch.program, "--mpi", "-np", str(placement.ranks)]
    if placement.hosts:
        argv += ["-H", _host_list(placement), *_horovods_ssh_options(placement.ssh_command)]
        further = [*_remote_shell(job, mpi), *further]
    argv += [f"--binding-args={shlex.join(_binding(placement, mpi))}"]
    argv += [f"--mpi-args={shlex.join(further)}"] if further else []
    return (*argv, *wrapper(job, launch))


def srun(
    job: Job, placement: Placement, launch: Launch, pmi: str, *, nodes: int = 1, tasks: int = 0, options: Sequence[str] = ()
) -> tuple[str, ...]:
    """``srun --mpi=... python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``: one step that holds all ranks.

    Consecutive ranks share a node.  A rank that ends badly ends the step, as under mpirun, so that no other waits for it.

    Args:
        job: the job.
        placement: its ranks.
        launch: how they are started.
        pmi: the type that ``--mpi`` gets.
        nodes: nodes of the allocation.
        tasks: most tasks for which one of them has room; 0 if it is not known.
        options: further options of the step.
    """
    argv = ["srun", f"--mpi={pmi}", f"--ntasks={placement.ranks}"]
    if nodes > 1:
        argv.append(f"--nodes={min(nodes, placement.ranks)}")
    per_node = -(-placement.ranks // nodes)
    argv += [f"--ntasks-per-node={per_node}"] if tasks >= per_node else []
    argv += [f"--cpus-per-task={placement.threads_per_rank}", f"--cpu-bind={_CPU_BIND[placement.binding]}"]
    argv += [*WHOLE_STEP, "--export=ALL", *options]
    return (*argv, *wrapper(job, launch))


def sbatch(job_dir: str) -> tuple[str, ...]:
    """Build the call that submits a script, which it reads from its standard input."""
    return ("sbatch", "--parsable", "--export=ALL", f"--chdir={job_dir}")


def idle_environment(placement: Placement, launch: Launch) -> dict[str, str]:
    """Set variables by which a rank that shares its core lets others run while it waits; only mpirun has such."""
    if launch.backend not in ("mpirun", "horovodrun") or not placement.oversubscribed:
        return {}
    return dict(options_of(launch.mpi_flavour, launch.mpi_version).oversubscribed_environment)


def _binding(placement: Placement, mpi: Options) -> tuple[str, ...]:
    crowded = placement.oversubscribed
    return mpi.bind(placement.binding, placement.ranks, placement.threads_per_rank, crowded=crowded)


def _where(job: Job, placement: Placement, launch: Launch, mpi: Options) -> tuple[str, ...]:
    """List the options for where the ranks run, how the hosts are reached, and which variables travel there."""
    if not placement.hosts:
        return tuple(option.format(ranks=placement.ranks) for option in mpi.here)
    options = [option.format(hosts=_host_list(placement)) for option in mpi.host_list]
    options += _remote_shell(job, mpi)
    for name in _exported(job, launch) if mpi.export else ():
        options += [mpi.export, name]
    return tuple(options)


def _host_list(placement: Placement) -> str:
    """Write the hosts as every mpirun here takes them: ``node1:2,node2:2``."""
    return ",".join(f"{host.name}:{host.slots}" for host in placement.hosts)


def _remote_shell(job: Job, mpi: Options) -> list[str]:
    """List the options that name the program by which hosts are reached.

    Raises:
        PlanError: if this MPI would split its path.
    """
    shell = str(attempt_of(job).remote_shell)
    if mpi.splits_shell and len(shell.split()) != 1:
        raise PlanError(
            f"the path {job.dir} holds a blank, and Open MPI cannot reach other hosts from there: choose another --jobs-dir"
        )
    return [option.format(shell=shell) for option in mpi.remote_shell]


def _exported(job: Job, launch: Launch) -> tuple[str, ...]:
    """List the variables that the wrappers on other hosts need, sorted; values travel inside mpirun's own connection."""
    return tuple(sorted({*launch.environment, *variables.own_variables(attempt_of(job)), variables.SUPERVISOR, *job.secrets}))


def _horovods_ssh_options(ssh: tuple[str, ...]) -> list[str]:
    """Translate the two options of ssh that horovodrun knows; it tries whether the hosts answer."""
    names = {"-p": "--ssh-port", "-i": "--ssh-identity-file"}
    pairs = itertools.pairwise(ssh)
    return [word for option, value in pairs if option in names for word in (names[option], value)]

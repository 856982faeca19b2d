"""How ranks are started inside an allocation: by srun, with the PMI by which this MPI finds its ranks, or by mpirun.

Which of SLURM's PMIs works with the MPI of the training cannot be known without trying: SLURM offers types whose library is
missing, and an MPI started under the wrong type either ends at once or, worse, runs as many worlds of one rank.  So each type is
tried with a program that counts its world, one process a node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from launcher.attempt.program import Program
from launcher.errors import BackendError
from launcher.host.program import Answer, run
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.plan import argv
from launcher.plan.facts import Allocation, find_program
from launcher.plan.mpi import Mpirun, options_of, probe_mpirun
from launcher.slurm import causes
from launcher.slurm.commands import Reach
from launcher.slurm.script import asked_of

ASK_SECONDS = 5.0
"""Seconds that SLURM has to say whether an allocation is held."""
PROBE_SECONDS = 60.0
PROBE = (
    "import sys, time\ntry:\n    from mpi4py import MPI\nexcept ImportError:\n    sys.exit('mpi4py cannot be imported')\n"
    "print('world', MPI.COMM_WORLD.Get_size(), flush=True)"
)
STEP_OPTIONS = (
    "SLURM_CPU_BIND", "SLURM_MEM_BIND", "SLURM_DISTRIBUTION", "SLURM_KILL_BAD_EXIT", "SLURM_LABELIO", "SLURM_EXACT", "SLURM_WAIT",
    "SLURM_NTASKS_PER_NODE", "SLURM_STEP_KILLED_MSG_NODE_ID", "SLURM_STDOUTMODE", "SLURM_STDERRMODE",
)  # fmt: skip
"""Variables of an outer job that srun would take for options of a step."""
_ORDER = {"openmpi": ("pmix", "pmi2"), "mpich": ("pmi2", "pmix"), "intel": ("pmi2", "pmix")}


@dataclass(frozen=True)
class StartMethod:
    """One way to start ranks in an allocation."""

    program: str
    """srun or mpirun."""
    mpi: str
    """Value of ``srun --mpi``; '' for mpirun."""
    mpirun: Mpirun | None
    """The mpirun at hand, if there is one."""
    reason: str
    """Why this way, for people."""


def parse_types(text: str) -> tuple[str, ...]:
    """The PMI types in what ``srun --mpi=list`` prints, in any of its shapes (22.05 and later, and before)."""
    words = []
    for line in text.splitlines():
        cleaned = re.sub(r"^srun:\s*", "", line).strip()
        if re.fullmatch(r"[a-z0-9_]+", cleaned):
            words.append(cleaned)
    return tuple(dict.fromkeys(words))


def candidates(wanted: str, offered: Sequence[str], flavour: str) -> tuple[str, ...]:
    """The PMI types to try, best first.

    Args:
        wanted: ``slurm.mpi``.
        offered: what srun offers.
        flavour: of the mpirun at hand, which tells the MPI; '' if there is none.
    """
    if wanted == "mpirun":
        return ()
    if wanted != "auto":
        return (wanted,)
    return tuple(kind for kind in _ORDER.get(flavour, ("pmix", "pmi2")) if kind in offered)


def probe_argv(allocation: Allocation, kind: str, python: str) -> tuple[tuple[str, ...], int]:
    """The step that counts its world under a PMI type, and its number of processes: one a node, two if there is one node."""
    nodes = len(allocation.nodes)
    count = nodes if nodes > 1 else min(2, max(1, allocation.slots))
    words = ("srun", f"--mpi={kind}", f"--nodes={nodes}", f"--ntasks={count}", "--cpus-per-task=1", "--kill-on-bad-exit=1")
    return (*words, "--quiet", *shared(allocation), python, "-c", PROBE), count


def shared(allocation: Allocation) -> tuple[str, ...]:
    """Options of a step that must share what another step holds."""
    return ("--overlap",) if allocation.in_step else ()


def saw_one_world(answer: Answer, count: int) -> bool:
    """Whether all processes of the probe found one world."""
    return answer.ok and [line for line in answer.stdout.splitlines() if line.startswith("world ")] == [f"world {count}"] * count


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a step: options of the outer job that srun would take for the step's own are left out.

    What is given on srun's command line wins over them, but not all of them have a counterpart there.
    """
    return {name: value for name, value in environment.items() if not name.startswith(STEP_OPTIONS)}


def find_mpirun(environment: Mapping[str, str], given: str | None = None) -> Mpirun | None:
    """The mpirun that the job would use: the given one, the first on PATH, or the one beside the interpreter."""
    path = given or find_program("mpirun", environment.get("PATH", os.defpath))
    return probe_mpirun(path) if path else None


def no_method(allocation: Allocation, tried: Sequence[tuple[str, str]], wanted: str = "auto") -> BackendError:
    """The error if nothing works: what was tried, and what to do."""
    said = "; ".join(f"--mpi={kind}: {why}" for kind, why in tried) or "srun offers neither pmix nor pmi2"
    cannot = f"job {allocation.job_id}: ranks cannot be started here by srun ({said})"
    if wanted not in ("auto", "mpirun"):
        return BackendError(f"{cannot}: ask for another type of `srun --mpi=list`, or for auto, which tries them and mpirun")
    start = f"job {allocation.job_id}:" if wanted == "mpirun" else f"{cannot}, and"
    return BackendError(
        f"{start} there is no mpirun on PATH or beside python: load the cluster's MPI, as in `module load openmpi`; in a job's "
        "YAML that is slurm.prologue"
    )


def choose(
    allocation: Allocation, environment: Mapping[str, str], python: str, wanted: str = "auto", *,
    mpirun: str | None = None, call: Callable[[Sequence[str]], Answer] | None = None,
) -> StartMethod:  # fmt: skip
    """Find how ranks are started in an allocation.

    Args:
        allocation: where.
        environment: the whole environment of this process.
        python: the interpreter of the training.
        wanted: ``slurm.mpi``: auto, a type of ``srun --mpi``, or mpirun.
        mpirun: path of the mpirun to use, if the user gives one.
        call: runs a command; by default for real.

    Raises:
        BackendError: if nothing works, naming what was tried.
    """
    around = {**step_environment(environment), "LC_ALL": "C"}
    ask = call or partial(run, environment=around, seconds=PROBE_SECONDS)
    found = find_mpirun(environment, mpirun)
    usable = found if found is not None and found.flavour != "unknown" else None
    tried: list[tuple[str, str]] = []
    if wanted != "mpirun":
        offered = ask(("srun", "--mpi=list"))
        kinds = candidates(wanted, parse_types(offered.stdout + offered.stderr), usable.flavour if usable else "")
        for kind in kinds:
            words, count = probe_argv(allocation, kind, python)
            answer = ask(words)
            if saw_one_world(answer, count):
                return StartMethod("srun", kind, usable, f"srun --mpi={kind} gives {count} processes one world")
            tried.append((kind, _why(answer, count)))
    if usable is None or (wanted not in ("auto", "mpirun") and tried):
        raise no_method(allocation, tried, wanted)
    failed = ", ".join(kind for kind, _ in tried)
    reason = "as asked for" if wanted == "mpirun" else f"srun does not do: {failed or 'no known PMI'}"
    return StartMethod("mpirun", "", usable, f"{usable.label}; {reason}")


def _why(answer: Answer, count: int) -> str:
    worlds = sorted({line for line in answer.stdout.splitlines() if line.startswith("world ")})
    if answer.ok and worlds:
        return f"{count} processes found {' and '.join(worlds)}"
    return answer.complaint


def asker(job_id: str, environment: Mapping[str, str]) -> Callable[[], Answer]:
    """Asks the cluster that an allocation belongs to about the allocation."""
    away = "SLURM_WORKING_CLUSTER" in environment  # set by `salloc -M`, for another cluster than that of this host
    reach = Reach.of(environment, environment.get("SLURM_CLUSTER_NAME") if away else None)
    return partial(reach.ask, ("scontrol", "--oneliner", "show", "job", job_id), timeout=ASK_SECONDS)


def start(plan: Plan, attempt: AttemptPaths) -> Program:
    """Look at the allocation that this process stands in, find a way to start the ranks, and start them.

    Raises:
        BackendError: as `resolve`, or if the program cannot be started.
    """
    here, method = resolve(plan, os.environ)
    program = Program.start(here, attempt)
    with suppress(OSError), attempt.job.backend_log.open("ab") as log:
        log.write(f"hvdgrab-launch: ranks are started by {method.program}: {method.reason}\n".encode())
    return program


def resolve(plan: Plan, environment: Mapping[str, str]) -> tuple[Plan, StartMethod]:
    """The plan with the argv by which it starts in the allocation at hand, and the way that was found.

    Raises:
        BackendError: if there is no allocation, it is over, or no way works.
    """
    allocation = Allocation.from_environment(environment)
    if allocation is None:
        raise BackendError("this job runs in an allocation of SLURM, but there is none here: SLURM_JOB_ID is not set")
    number = allocation.job_id
    over = causes.why_over(number, "", asker(number, environment)) if plan.launch.backend == "srun" else None
    if over is not None:  # mpirun would start the ranks all the same, on nodes that are others' by now
        held = f"SLURM's allocation {number}, in which the job was to run, {over.of_allocation}"
        raise BackendError(f"{held}: start it from a new one")
    around = {**environment, **plan.launch.environment}
    mpirun = plan.launch.program if os.access(plan.launch.program, os.X_OK) else None
    method = choose(allocation, around, plan.launch.python, asked_of(plan).mpi, mpirun=mpirun)
    if method.program == "srun":
        words: tuple[str, ...] = srun_argv(plan, allocation, method.mpi)
        further: dict[str, str] = {}
    else:
        words, further = mpirun_argv(plan, allocation, method)
    kept = tuple(name for name in environment if name.startswith(STEP_OPTIONS))
    launch = replace(plan.launch, environment=plan.launch.environment | further, scrubbed=kept)
    return replace(plan, argv=words, launch=launch), method


def srun_argv(plan: Plan, allocation: Allocation, pmi: str) -> tuple[str, ...]:
    """The step that holds all ranks."""
    options = [*shared(allocation), *(["--overcommit"] if _too_small(plan, allocation) else [])]
    nodes, tasks = len(allocation.nodes), max(allocation.tasks)
    return argv.srun(plan.job, plan.placement, plan.launch, pmi, nodes=nodes, tasks=tasks, options=options)


def mpirun_argv(plan: Plan, allocation: Allocation, method: StartMethod) -> tuple[tuple[str, ...], dict[str, str]]:
    """mpirun over the allocation's nodes, which it finds by itself, and the variables that it needs."""
    assert method.mpirun is not None
    mpi = options_of(method.mpirun.flavour, method.mpirun.version)
    crowded = plan.placement.oversubscribed or plan.placement.ranks > allocation.slots
    placement = replace(plan.placement, oversubscribed=crowded)
    options = argv.mpirun_options(placement, plan.launch, mpi)
    words = (method.mpirun.path, "-np", str(placement.ranks), *options, *argv.wrapper(plan.job, plan.launch))
    idle = mpi.oversubscribed_environment if crowded else {}
    return words, {**idle, **({"SLURM_OVERLAP": "1"} if allocation.in_step else {})}


def _too_small(plan: Plan, allocation: Allocation) -> bool:
    """Whether ranks must share cores.  Unknown numbers of cores count as enough: SLURM then refuses in its own words."""
    return all(allocation.cpus) and plan.placement.ranks * plan.placement.threads_per_rank > sum(allocation.cpus)

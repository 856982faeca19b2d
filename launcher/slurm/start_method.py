"""How ranks are started inside an allocation: by srun, with the PMI by which this MPI finds its ranks, or by mpirun.

Which of SLURM's PMIs works with the MPI of the training cannot be known without trying: SLURM offers types whose library is
missing, and an MPI started under the wrong type either ends at once or, worse, runs as many worlds of one rank.  So each type is
tried with a program that counts its world, one process a node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.errors import BackendError
from launcher.host.program import Answer
from launcher.plan.facts import Allocation, find_program
from launcher.plan.mpi import Mpirun, probe_mpirun

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
class Way:
    """One way to start ranks in an allocation."""

    program: str
    """srun or mpirun."""
    mpi: str
    """Value of ``srun --mpi``; '' for mpirun."""
    mpirun: Mpirun | None
    """The mpirun at hand, where there is one."""
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
        flavour: of the mpirun at hand, which tells the MPI; '' where there is none.
    """
    if wanted == "mpirun":
        return ()
    if wanted != "auto":
        return (wanted,)
    return tuple(kind for kind in _ORDER.get(flavour, ("pmix", "pmi2")) if kind in offered)


def probe_argv(allocation: Allocation, kind: str, python: str) -> tuple[tuple[str, ...], int]:
    """The step that counts its world under a PMI type, and its number of processes: one a node, two where there is one node."""
    nodes = len(allocation.nodes)
    count = nodes if nodes > 1 else min(2, max(1, allocation.slots))
    argv = ("srun", f"--mpi={kind}", f"--nodes={nodes}", f"--ntasks={count}", "--cpus-per-task=1", "--kill-on-bad-exit=1")
    return (*argv, "--quiet", *shared(allocation), python, "-c", PROBE), count


def shared(allocation: Allocation) -> tuple[str, ...]:
    """Options of a step that must share what another step holds."""
    return ("--overlap",) if allocation.in_step else ()


def counted(answer: Answer, count: int) -> bool:
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


def no_way(allocation: Allocation, tried: Sequence[tuple[str, str]], wanted: str = "auto") -> BackendError:
    """Nothing works: what was tried, and what to do."""
    said = "; ".join(f"--mpi={kind}: {why}" for kind, why in tried) or "srun offers neither pmix nor pmi2"
    cannot = f"job {allocation.job_id}: ranks cannot be started here by srun ({said})"
    if wanted not in ("auto", "mpirun"):
        return BackendError(f"{cannot}: ask for another type of `srun --mpi=list`, or for auto, which tries them and mpirun")
    start = f"job {allocation.job_id}:" if wanted == "mpirun" else f"{cannot}, and"
    return BackendError(
        f"{start} there is no mpirun on PATH or beside python: load the cluster's MPI, as in `module load openmpi`; in a job's "
        "YAML that is slurm.prologue"
    )

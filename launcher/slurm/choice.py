"""The choice between srun and mpirun, made inside the allocation by trying."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from launcher.host.program import Answer, run
from launcher.plan.facts import Allocation
from launcher.slurm.start_method import (
    PROBE_SECONDS,
    Way,
    candidates,
    counted,
    find_mpirun,
    no_way,
    parse_types,
    probe_argv,
    step_environment,
)

Call = Callable[[Sequence[str]], Answer]


def caller(environment: Mapping[str, str], timeout: float = PROBE_SECONDS) -> Call:
    """Runs a command inside the allocation; never raises."""

    def call(argv: Sequence[str]) -> Answer:
        around = {**step_environment(environment), "LC_ALL": "C"}
        return run(argv, environment=around, seconds=timeout)

    return call


def choose(
    allocation: Allocation, environment: Mapping[str, str], python: str, wanted: str = "auto", *,
    mpirun: str | None = None, call: Call | None = None,
) -> Way:  # fmt: skip
    """Find how ranks are started in an allocation.

    Args:
        allocation: where.
        environment: the whole environment of this process.
        python: the interpreter of the training.
        wanted: ``slurm.mpi``: auto, a type of ``srun --mpi``, or mpirun.
        mpirun: path of the mpirun to use, where the user gives one.
        call: runs a command; by default for real.

    Raises:
        BackendError: where nothing works; names what was tried.
    """
    run = call or caller(environment)
    found = find_mpirun(environment, mpirun)
    usable = found if found is not None and found.flavour != "unknown" else None
    tried: list[tuple[str, str]] = []
    if wanted != "mpirun":
        offered = run(("srun", "--mpi=list"))
        kinds = candidates(wanted, parse_types(offered.stdout + offered.stderr), usable.flavour if usable else "")
        for kind in kinds:
            argv, count = probe_argv(allocation, kind, python)
            answer = run(argv)
            if counted(answer, count):
                return Way("srun", kind, usable, f"srun --mpi={kind} gives {count} processes one world")
            tried.append((kind, _why(answer, count)))
    if usable is None or (wanted not in ("auto", "mpirun") and tried):
        raise no_way(allocation, tried, wanted)
    failed = ", ".join(kind for kind, _ in tried)
    reason = "as asked for" if wanted == "mpirun" else f"srun does not do: {failed or 'no known PMI'}"
    return Way("mpirun", "", usable, f"{usable.label}; {reason}")


def _why(answer: Answer, count: int) -> str:
    worlds = sorted({line for line in answer.stdout.splitlines() if line.startswith("world ")})
    if answer.ok and worlds:
        return f"{count} processes found {' and '.join(worlds)}"
    return answer.complaint

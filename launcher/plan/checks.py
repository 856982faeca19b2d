"""Refuses while planning what every rank, mpirun or sbatch would refuse later."""

from __future__ import annotations

from collections.abc import Iterator

from hvdgrab.config import SINGLE_RANK_ORDERS, BalanceConfig
from launcher.errors import PlanError
from launcher.plan.facts import Facts
from launcher.plan.mpi import DECIDED, network_faults, owners_of_foreign
from launcher.spec.model import Spec

OWN_OPTIONS = {
    "--array": "use `variants`, each of which is a job", "-a": "use `variants`, each of which is a job",
    "--job-name": "it is how a job is found again", "-J": "it is how a job is found again",
    "--comment": "it is how a job is found again", "--output": "see logs/ in the job directory",
    "-o": "see logs/ in the job directory", "--error": "see logs/ in the job directory", "-e": "see logs/ in the job directory",
    "--chdir": "use `workdir`", "-D": "use `workdir`", "--export": "use `env`", "--wrap": "use `command`",
    "--ntasks": "use `resources.ranks`", "-n": "use `resources.ranks`", "--time": "use `resources.time_limit`",
    "-t": "use `resources.time_limit`", "--requeue": "use `slurm.requeue`", "--no-requeue": "use `slurm.requeue`",
    "--parsable": "it always is", "--test-only": "use `--dry-run`", "-W": "use `hvdgrab-launch wait`",
    "--wait": "use `hvdgrab-launch wait`",
}  # fmt: skip
"""Options of sbatch that ``slurm.extra`` may not hold, and what to use in their place."""


def check_root(spec: Spec, backend: str, root: bool) -> bool:
    """Tell whether the backend must be told that root is meant.

    Raises:
        PlanError: if the spec does not consent to it.
    """
    if not root or backend == "local":
        return False
    if not spec.resources.allow_root:
        raise spec.refuse(
            "resources.allow_root",
            f"{backend} is not started as root without consent: write `resources.allow_root: true`, or use another account",
        )
    return True


def check_spec(spec: Spec, facts: Facts, backend: str, ranks: int) -> None:
    """Check a spec against the number of ranks that train and the way they are started.

    Raises:
        PlanError: naming everything that was found.
    """
    checks = (_grab(spec, ranks), _limits(spec, backend, ranks), _mpi(spec, facts, backend), _sbatch(spec, backend))
    faults = [fault for check in checks for fault in check]
    if faults:
        raise PlanError([spec.problem(path, message) for path, message in faults])


def _grab(spec: Spec, ranks: int) -> Iterator[tuple[str, str]]:
    grab = spec.grab
    if grab.order in SINGLE_RANK_ORDERS and ranks > 1:
        yield "grab.order", f"'{grab.order}' orders a single rank, but there are {ranks}: use id-grab or cd-grab"
    if grab.designated_rank >= ranks:
        yield "grab.designated_rank", f"there is no rank {grab.designated_rank}, the ranks are 0 … {ranks - 1}"
    if grab.order == "grab":
        own = {**BalanceConfig().model_dump(), "backend": "reference" if grab.balance.backend == "reference" else "auto"}
        for name in [name for name, value in grab.balance if value != own[name]]:
            yield f"grab.balance.{name}", "order 'grab' balances no pairs: leave it out, or choose id-grab or recursive"
    size = grab.communication.node_size
    if size is not None and size > ranks:
        yield "grab.communication.node_size", f"{size} are more than the {ranks} ranks that the job has"


def _limits(spec: Spec, backend: str, ranks: int) -> Iterator[tuple[str, str]]:
    limit, before = spec.resources.time_limit, spec.checkpoint.before_limit
    if limit is not None and spec.checkpoint.signal is not None and before >= limit:
        yield "checkpoint.before_limit", "is not shorter than resources.time_limit: the signal would come at the start"
    if spec.restart.time_limit != 0 and limit is None and backend not in ("slurm", "srun"):
        yield "restart.time_limit", "there is no resources.time_limit after which the job could be started again"
    fewest = spec.restart.min_ranks
    if fewest is not None and fewest > ranks:
        yield "restart.min_ranks", f"{fewest} are more than the {ranks} ranks that the job has"


def _mpi(spec: Spec, facts: Facts, backend: str) -> Iterator[tuple[str, str]]:
    """Check settings against the MPI at hand."""
    if facts.mpirun is None or backend not in ("mpirun", "horovodrun"):
        return
    yield from network_faults(spec.network, facts.mpirun)
    for place, word in enumerate(spec.backend.extra_args):
        path, option = f"backend.extra_args.{place}", word.partition("=")[0]
        if (setting := DECIDED.get(option)) is not None:
            yield path, f"{option} is decided by {setting}: set that instead"
        elif owners := owners_of_foreign(option, facts.mpirun):
            owner = " or ".join(owners)
            yield path, f"{option} is an option of {owner}, and {facts.mpirun.path} is {facts.mpirun.label}"


def _sbatch(spec: Spec, backend: str) -> Iterator[tuple[str, str]]:
    """Check the user's options of sbatch, which the script holds behind ``#SBATCH``."""
    for place, option in enumerate(spec.slurm.extra if spec.slurm is not None and backend == "slurm" else ()):
        path, name = f"slurm.extra.{place}", option.partition("=")[0]
        if name in OWN_OPTIONS:
            yield path, f"{name} is set by the launcher: {OWN_OPTIONS[name]}"
        elif '"' in option or "\\" in option:
            yield path, f"{option!r} holds a quote or a backslash, which sbatch reads in ways of its own: leave it out"

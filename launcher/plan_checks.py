"""What every rank, or mpirun, would refuse later is refused while planning."""

from __future__ import annotations

from collections.abc import Iterator

from hvdgrab.config import SINGLE_RANK_ORDERS
from launcher.errors import PlanError
from launcher.facts import Facts
from launcher.network import network_faults
from launcher.spec import Spec


def check_root(spec: Spec, backend: str, root: bool) -> bool:
    """Whether the backend must be told that root is meant.

    Raises:
        PlanError: where the spec does not consent to it.
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
    faults = [*_grab(spec, ranks), *_limits(spec, backend, ranks), *_network(spec, facts, backend)]
    if faults:
        raise PlanError([spec.problem(path, message) for path, message in faults])


def _grab(spec: Spec, ranks: int) -> Iterator[tuple[str, str]]:
    grab = spec.grab
    if grab.order in SINGLE_RANK_ORDERS and ranks > 1:
        yield "grab.order", f"'{grab.order}' orders a single rank, but there are {ranks}: use id-grab or cd-grab"
    if grab.designated_rank >= ranks:
        yield "grab.designated_rank", f"there is no rank {grab.designated_rank}, the ranks are 0 … {ranks - 1}"


def _limits(spec: Spec, backend: str, ranks: int) -> Iterator[tuple[str, str]]:
    limit, before = spec.resources.time_limit, spec.checkpoint.before_limit
    if limit is not None and spec.checkpoint.signal is not None and before >= limit:
        yield "checkpoint.before_limit", "is not shorter than resources.time_limit: the signal would come at the start"
    if spec.restart.time_limit != 0 and limit is None and backend != "slurm":
        yield "restart.time_limit", "there is no resources.time_limit after which the job could be started again"
    fewest = spec.restart.min_ranks
    if fewest is not None and fewest > ranks:
        yield "restart.min_ranks", f"{fewest} are more than the {ranks} ranks that the job has"


def _network(spec: Spec, facts: Facts, backend: str) -> Iterator[tuple[str, str]]:
    if facts.mpirun is not None and backend in ("mpirun", "horovodrun"):
        yield from network_faults(spec.network, facts.mpirun.flavour, facts.mpirun.version, facts.mpirun.label)

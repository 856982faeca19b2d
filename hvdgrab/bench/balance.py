"""How fast pair differences are balanced: every backend against a loop of torch calls, and a simulated epoch of a big cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.pairs import pair_balance
from hvdgrab.balance.reference import Audit
from hvdgrab.bench.balance_epoch import epoch
from hvdgrab.bench.balance_rows import Case, Row, balancer_of, copying, extra_mib, figures, finish, interleaved
from hvdgrab.bench.runs import BenchError
from hvdgrab.errors import ConfigError

CASES = ("4096x4096", "4096x1024", "256x1000000", "1024x500x4096")
GPU_CASE = "64x25000000"


def default_cases() -> list[str]:
    """What is measured where nothing else is asked for."""
    return [*CASES, *([GPU_CASE] if torch.cuda.is_available() else [])]


def backends_of(case: str) -> tuple[str, ...]:
    """What a case is measured with where nothing else is asked for."""
    if case == GPU_CASE and torch.cuda.is_available():
        return ("triton",)
    numba = ("numba",) if importlib.util.find_spec("numba") is not None else ()
    return numba or ("reference",) if Case.parse(case).ranks else ("reference", *numba, "torch")


def measure(
    name: str, backends: Sequence[str], repeats: int, *, tell: Callable[[Row], None] | None = None
) -> list[Row]:
    """Measure a case (see `Case`): one row for each backend, two for a simulated epoch (fp32; int8 payloads, expanded first).

    Times are medians of `repeats`, taken in turns with the baseline's and with those of a plain copy; ``best`` are minima, which
    a busy machine disturbs least.  ``wrong`` counts signs that contradict the rule by more than rounding can explain,
    ``rounding`` those that rounding explains.

    Raises:
        BenchError: a backend that cannot run here.
        ValueError: no case.
    """
    case = Case.parse(name)
    device = "cuda" if "triton" in backends else "cpu"
    if device == "cuda" and (case.ranks or not torch.cuda.is_available()):
        raise BenchError("backend 'triton' is measured on a GPU, which is not there, and on MxD cases only")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if case.ranks is not None:
            rows = [row for backend in backends for row in epoch(case, backend, repeats)]
        else:
            rows = _matrix(case, backends, repeats, device)
    except ConfigError as error:
        raise BenchError(str(error)) from None
    finally:
        torch.set_num_threads(threads)
    if tell is not None:
        for row in rows:
            tell(row)
    return rows


def _matrix(case: Case, backends: Sequence[str], repeats: int, device: str) -> list[Row]:
    rows = torch.randn(case.m, case.d, generator=torch.Generator(device).manual_seed(0), device=device)
    runs: dict[str, Callable[[], object]] = {"baseline": _baseline(rows), "copy": copying(device)}
    checks: dict[str, Row] = {}
    for backend in backends:
        run = _balancing(case, backend, rows)
        signs = run()  # compiles
        extra = None if device == "cuda" else extra_mib(run)
        runs[backend], checks[backend] = run, {"extra_MiB": extra, **_audited(rows.cpu().numpy(), signs)}
    times = interleaved(runs, repeats)
    baseline, copies = times["baseline"], times["copy"]
    return [figures(case, backend, "fp32", times[backend], copies, checks[backend], baseline) for backend in backends]


def _baseline(rows: torch.Tensor) -> Callable[[], object]:
    """What a training script would write: a loop of `inner` and `add_`."""

    def run() -> None:
        h = torch.zeros(rows.shape[1], device=rows.device)
        for row in rows:
            if torch.inner(h, row) <= 0:
                h.add_(row)
            else:
                h.sub_(row)
        finish(rows.device.type)

    return run


def _balancing(case: Case, backend: str, rows: torch.Tensor) -> Callable[[], NDArray[np.int8]]:
    """One epoch; its signs."""
    if rows.device.type == "cuda":

        def on_gpu() -> NDArray[np.int8]:
            signs: torch.Tensor = pair_balance(rows, torch.zeros(case.d, device="cuda"), backend)
            return signs.cpu().numpy()

        return on_gpu
    balancer, given = balancer_of(case, backend), rows.numpy()

    def run() -> NDArray[np.int8]:
        balancer.begin_epoch()
        return balancer.feed(given)[0]

    return run


def _audited(rows: NDArray[np.float32], signs: NDArray[np.int8]) -> Row:
    audit = Audit(rows.shape[1])
    audit.feed(rows, signs)
    return {"wrong": audit.wrong, "rounding": audit.rounding}

"""``hvdgrab-bench balance``: every backend of the order engine against a loop of torch calls, and an epoch of a big cluster."""

from __future__ import annotations

import copy
import gc
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.balance.pairs import pair_balance
from hvdgrab.balance.reference import Audit
from hvdgrab.bench.runs import BenchError, Case
from hvdgrab.compression import build_compressor
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import ConfigError

CASES = ("4096x4096", "4096x1024", "256x1000000", "1024x500x4096")
GPU_CASE = "64x25000000"
Row = dict[str, object]
Times = list[float]
COPY = 2**28
"""Bytes of a plain copy, with whose bandwidth others are compared."""
WINDOW = 2**24
"""Values of the window in which vectors of the simulated epoch arrive: 64 MiB, more than fits into most caches."""
POOL = 8
"""Number of windows of distinct vectors, 512 MiB as fp32; a vector is repeated only after all others."""
SLICE = 2**18
"""Values that are expanded from payloads before they are balanced: 1 MiB, which stays in a cache."""


def default_cases() -> list[str]:
    """The cases that are measured by default."""
    return [*CASES, *([GPU_CASE] if torch.cuda.is_available() else [])]


def backends_of(case: str) -> tuple[str, ...]:
    """The backends with which a case is measured by default."""
    if case == GPU_CASE and torch.cuda.is_available():
        return ("triton",)
    numba = ("numba",) if importlib.util.find_spec("numba") is not None else ()
    return numba or ("reference",) if Case.parse(case).ranks else ("reference", *numba, "torch")


def measure(
    name: str, backends: Sequence[str], repeats: int, *, tell: Callable[[Row], None] | None = None
) -> list[Row]:
    """Measure a case (see `Case`): one row for each backend, two for a simulated epoch (fp32; int8 payloads, expanded first).

    Times are medians of `repeats`, in turns with the baseline and with a plain copy; ``best`` are minima, which a busy machine
    disturbs least.  ``wrong`` counts signs that violate the rule by more than rounding, ``rounding`` those that rounding
    explains.

    Raises:
        BenchError: a backend cannot run here.
        ValueError: `name` is no case.
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
        signs = run()  # the first run compiles
        extra = None if device == "cuda" else extra_mib(run)
        runs[backend], checks[backend] = run, {"extra_MiB": extra, **_audited(rows.cpu().numpy(), signs)}
    times = interleaved(runs, repeats)
    baseline, copies = times["baseline"], times["copy"]
    return [figures(case, backend, "fp32", times[backend], copies, checks[backend], baseline) for backend in backends]


def _baseline(rows: torch.Tensor) -> Callable[[], object]:
    """The loop of a training script: `inner` and `add_` for each vector."""

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
    """Make a function that balances one epoch and returns its signs."""
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


def epoch(case: Case, backend: str, repeats: int) -> list[Row]:
    """Balance a simulated epoch from the differences in the window (fp32), and from payloads that are expanded first (int8)."""
    times: dict[str, Times] = {"fp32": [], "int8": [], "copy": []}
    plain = copying("cpu")
    checks: dict[str, Row] = {}
    pool = _pool(case)
    for repeat in range(repeats):
        one = _Epoch(case, backend, audited=repeat == 0)
        for payloads in _windows(case, pool, seed=repeat):
            one.take(payloads)
        times["fp32"].append(one.balancing)
        times["int8"].append(one.expanding)
        times["copy"] += interleaved({"copy": plain}, 1)["copy"]
        checks = checks or {name: {"extra_MiB": one.extra[name], **one.verdict(name)} for name in ("fp32", "int8")}
    return [figures(case, backend, name, times[name], times["copy"], checks[name]) for name in ("fp32", "int8")]


class _Epoch:
    """One epoch, balanced twice from the same payloads."""

    def __init__(self, case: Case, backend: str, audited: bool) -> None:
        self.case = case
        self.compressor = build_compressor("int8")
        rows = _window_rows(case)
        self.window = torch.zeros(rows, case.d)
        self.slice = torch.zeros(min(rows, max(1, SLICE // case.d)), case.d)
        self.balancers = {name: balancer_of(case, backend) for name in ("fp32", "int8")}
        audit = Audit(case.d)
        self.audits = dict.fromkeys(self.balancers, audit) if audited else {}
        self.balancing = self.expanding = 0.0
        self.extra: dict[str, float | None] = {"fp32": None, "int8": None}

    def take(self, payloads: NDArray[np.uint8]) -> None:
        """Balance a window's payloads; only the balancing and, for int8, the expanding is timed."""
        window = self.window[: len(payloads)]
        self.compressor.expand_many(payloads, window)
        self.balancing += self._timed("fp32", lambda: self.balancers["fp32"].feed(window.numpy()))
        self.expanding += self._timed("int8", lambda: self._from_payloads(payloads))
        if self.audits:
            self._audit(window.numpy())

    def _audit(self, window: NDArray[np.float32]) -> None:
        """Audit the signs of both rows, with a single audit while they are equal."""
        signs = {name: balancer.signs[-len(window) :] for name, balancer in self.balancers.items()}
        if self.audits["int8"] is self.audits["fp32"] and not np.array_equal(signs["int8"], signs["fp32"]):
            self.audits["int8"] = copy.deepcopy(self.audits["fp32"])
        self.audits["fp32"].feed(window, signs["fp32"])
        if self.audits["int8"] is not self.audits["fp32"]:
            self.audits["int8"].feed(window, signs["int8"])

    def verdict(self, name: str) -> Row:
        """Counts of the audit."""
        return {"wrong": self.audits[name].wrong, "rounding": self.audits[name].rounding}

    def _timed(self, name: str, run: Callable[[], object]) -> float:
        seconds = 0.0

        def timed() -> None:
            nonlocal seconds
            began = perf_counter()
            run()
            seconds = perf_counter() - began

        if self.audits and self.extra[name] is None:
            self.extra[name] = extra_mib(timed)
        else:
            timed()
        return seconds

    def _from_payloads(self, payloads: NDArray[np.uint8]) -> None:
        for start in range(0, len(payloads), len(self.slice)):
            part = payloads[start : start + len(self.slice)]
            expanded = self.slice[: len(part)]
            self.compressor.expand_many(part, expanded)
            self.balancers["int8"].feed(expanded.numpy())


def _pool(case: Case) -> NDArray[np.uint8]:
    """Make payloads of distinct vectors of normal numbers: (vectors, bytes)."""
    compressor, rng = build_compressor("int8"), np.random.default_rng(0)
    payloads = np.empty((min(case.m, POOL * _window_rows(case)), compressor.wire_bytes(case.d)), dtype=np.uint8)
    for payload in payloads:
        compressor.encode(rng.standard_normal(case.d, dtype=np.float32), out=payload)
    return payloads


def _window_rows(case: Case) -> int:
    return min(case.m, max(1, WINDOW // case.d))


def _windows(case: Case, pool: NDArray[np.uint8], seed: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the epoch's payloads, a window at a time; none is repeated before the whole pool has been used."""
    rng, rows = np.random.default_rng(seed), _window_rows(case)
    order = np.empty(0, dtype=np.int64)
    for start in range(0, case.m, rows):
        count = min(rows, case.m - start)
        if len(order) < count:
            order = rng.permutation(len(pool))
        drawn, order = order[:count], order[count:]
        yield pool[drawn]


def figures(
    case: Case, backend: str, payload: str, times: Times, copies: Times, checks: Row, baseline: Times | None = None
) -> Row:
    """Compute one row of the table.

    Args:
        case, backend, payload: what was measured.
        times: seconds of each repeat.
        copies: seconds of a plain copy of `COPY` bytes, at the same time.
        checks: the last columns.
        baseline: seconds of the baseline, if there is one.
    """
    moved = 4 * case.m * case.d  # every vector is read once; the running sum stays in a cache, or is small in comparison
    seconds, copied = median(times), 2 * COPY / median(copies)
    return {
        "case": str(case),
        "backend": backend,
        "payload": payload,
        "ms": 1e3 * seconds,
        "ms_best": 1e3 * min(times),
        "us_per_vector": 1e6 * seconds / case.m,
        "baseline_ms": None if baseline is None else 1e3 * median(baseline),
        "speedup": None if baseline is None else median(baseline) / seconds,
        "speedup_best": None if baseline is None else min(baseline) / min(times),
        "moved_MiB": moved / 2**20,
        "GB_per_s": moved / seconds / 1e9,
        "of_copy": moved / seconds / copied,
        **checks,
    }


def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, Times]:
    """Time each function in turns, in seconds."""
    times: dict[str, Times] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began = perf_counter()
            run()
            times[name].append(perf_counter() - began)
    return times


def balancer_of(case: Case, backend: str) -> PairBalancer:
    """Make a balancer and compile what it needs."""
    config = BalanceConfig.model_validate({"backend": backend})
    balancer = PairBalancer(case.d, config, expected=case.m)
    balancer.warm_up()
    return balancer


def copying(device: str) -> Callable[[], object]:
    """Make a function that copies `COPY` bytes."""
    source = torch.ones(COPY // 4, device=device)
    target = torch.zeros_like(source)

    def run() -> None:
        target.copy_(source)
        finish(device)

    return run


def finish(device: str) -> None:
    """Wait for the device if it is a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def extra_mib(run: Callable[[], object]) -> float | None:
    """Measure the largest growth of this process's resident memory while `run` runs; None if Linux does not tell."""
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    gc.collect()
    try:
        before = _kib(status, "VmRSS")
        reset.write_text("5")
        run()
        return max(0, _kib(status, "VmHWM") - before) / 2**10
    except OSError:
        return None


def _kib(status: Path, name: str) -> int:
    (line,) = [line for line in status.read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1])

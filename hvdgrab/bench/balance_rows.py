"""What the benchmarks of the order engine share: cases, clocks, and the columns of a row."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.config import BalanceConfig

Row = dict[str, object]
Times = list[float]
COPY = 2**28
"""Bytes of the plain copy that bandwidths are compared with."""


@dataclass(frozen=True)
class Case:
    """``MxD``: m vectors of d floats in memory, or ``WxPxD``: an epoch of W ranks with P pairs of d floats, window by window."""

    ranks: int | None
    pairs: int
    d: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case of a name such as 4096x1024 or 1024x500x4096.

        Raises:
            ValueError: another form, or a number below 1.
        """
        numbers = [int(part) for part in text.lower().split("x")]
        if len(numbers) not in (2, 3) or min(numbers) < 1:
            raise ValueError(f"{text!r} is no case: give MxD (vectors x floats) or WxPxD (ranks x pairs x floats)")
        return cls(None, *numbers) if len(numbers) == 2 else cls(*numbers)

    @property
    def m(self) -> int:
        """Vectors."""
        return self.pairs * (self.ranks or 1)

    def __str__(self) -> str:
        return "x".join(str(number) for number in (self.ranks, self.pairs, self.d) if number is not None)


def figures(
    case: Case, backend: str, payload: str, times: Times, copies: Times, checks: Row, baseline: Times | None = None
) -> Row:
    """One row of the table.

    Args:
        case, backend, payload: what was measured.
        times: seconds of each repeat.
        copies: seconds of a plain copy of `COPY` bytes, at the same time.
        checks: further columns, the last ones.
        baseline: seconds of the baseline, where there is one.
    """
    moved = 4 * case.m * case.d  # every vector is read once; the running sum stays in a cache, or is little beside them
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
    """Seconds of each, taken in turns."""
    times: dict[str, Times] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began = perf_counter()
            run()
            times[name].append(perf_counter() - began)
    return times


def balancer_of(case: Case, backend: str) -> PairBalancer:
    """A balancer that has compiled what it needs."""
    config = BalanceConfig.model_validate({"backend": backend})
    balancer = PairBalancer(case.d, config, expected=case.m)
    balancer.warm_up()
    return balancer


def copying(device: str) -> Callable[[], object]:
    """A plain copy of `COPY` bytes."""
    source = torch.ones(COPY // 4, device=device)
    target = torch.zeros_like(source)

    def run() -> None:
        target.copy_(source)
        finish(device)

    return run


def finish(device: str) -> None:
    """Wait for what runs on a GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def extra_mib(run: Callable[[], object]) -> float | None:
    """Largest growth of this process's resident memory while `run` runs; None where Linux does not tell."""
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

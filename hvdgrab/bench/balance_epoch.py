"""A simulated epoch of a big cluster: its payloads come a window at a time and are balanced as one rank would."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.reference import Audit
from hvdgrab.bench.balance_rows import Case, Row, Times, balancer_of, copying, extra_mib, figures, interleaved
from hvdgrab.compression import build_compressor

WINDOW = 2**24
"""Values of the window in which vectors of the simulated epoch arrive: 64 MiB, more than most caches hold."""
POOL = 8
"""Windows of distinct vectors, 512 MiB as fp32; none comes twice before all have come."""
SLICE = 2**18
"""Values that are expanded from payloads before they are balanced: 1 MiB, so that they are still in a cache then."""


def epoch(case: Case, backend: str, repeats: int) -> list[Row]:
    """The simulated epoch: balanced as differences lie in the window (fp32), and from payloads that are expanded first (int8)."""
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
        """A window's payloads: only the balancing, and for int8 the expanding, is timed."""
        window = self.window[: len(payloads)]
        self.compressor.expand_many(payloads, window)
        self.balancing += self._timed("fp32", lambda: self.balancers["fp32"].feed(window.numpy()))
        self.expanding += self._timed("int8", lambda: self._from_payloads(payloads))
        if self.audits:
            self._audit(window.numpy())

    def _audit(self, window: NDArray[np.float32]) -> None:
        """Both rows' signs; as long as they are the same, one audit stands for both."""
        signs = {name: balancer.signs[-len(window) :] for name, balancer in self.balancers.items()}
        if self.audits["int8"] is self.audits["fp32"] and not np.array_equal(signs["int8"], signs["fp32"]):
            self.audits["int8"] = copy.deepcopy(self.audits["fp32"])
        self.audits["fp32"].feed(window, signs["fp32"])
        if self.audits["int8"] is not self.audits["fp32"]:
            self.audits["int8"].feed(window, signs["int8"])

    def verdict(self, name: str) -> Row:
        """What was found wrong."""
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
    """Payloads of distinct vectors of normal numbers: (vectors, bytes)."""
    compressor, rng = build_compressor("int8"), np.random.default_rng(0)
    payloads = np.empty((min(case.m, POOL * _window_rows(case)), compressor.wire_bytes(case.d)), dtype=np.uint8)
    for payload in payloads:
        compressor.encode(rng.standard_normal(case.d, dtype=np.float32), out=payload)
    return payloads


def _window_rows(case: Case) -> int:
    return min(case.m, max(1, WINDOW // case.d))


def _windows(case: Case, pool: NDArray[np.uint8], seed: int) -> Iterator[NDArray[np.uint8]]:
    """The epoch's payloads, a window at a time, none of them twice before all of the pool was used."""
    rng, rows = np.random.default_rng(seed), _window_rows(case)
    order = np.empty(0, dtype=np.int64)
    for start in range(0, case.m, rows):
        count = min(rows, case.m - start)
        if len(order) < count:
            order = rng.permutation(len(pool))
        drawn, order = order[:count], order[count:]
        yield pool[drawn]

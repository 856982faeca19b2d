"""``hvdgrab-bench compress``: the cost of each compressor, and its effect on the ordering, on real gradients of the examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance import balance_pairs, next_order
from hvdgrab.bench.gradients import Gradients, Orders, one_thread
from hvdgrab.compression import Compressor, build_compressor
from hvdgrab.report import plots

Row = dict[str, object]
EPOCHS = (1, 5)
"""Epochs of re-ordering after which the bound is measured."""
LOOKED_AT = 32
"""Number of pair differences whose inner products, times and round trips are measured."""
TIMED = 15
"""Repetitions of a timing; medians are reported."""
BATCH_BYTES = 2**25
"""Bytes of expanded payloads that are balanced together."""


@dataclass(frozen=True)
class Setting:
    """A compressor and its options."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.options.items())])

    def build(self) -> Compressor:
        """Build the compressor."""
        return build_compressor(self.kind, **self.options)


SETTINGS = (
    *(Setting(kind) for kind in ("none", "fp16", "bf16", "int8")),
    *(Setting("topk", {"ratio": ratio, "dtype": "fp16"}) for ratio in (0.1, 0.01, 0.001)),
    Setting("topk", {"ratio": 0.01, "dtype": "fp32"}),
    *(Setting("sketch", {"width": 4096, "dtype": dtype}) for dtype in ("fp32", "fp16", "int8", "sign")),
    *(Setting("sketch", {"width": width, "dtype": "int8"}) for width in (16384, 1024, 256)),
    # their numbers of buckets are primes, so that a matrix's columns do not share buckets systematically
    *(Setting("sketch", {"width": width, "dtype": "int8"}) for width in (2048, 512)),
)


def rows(
    stored: Gradients, settings: Sequence[Setting] | None = None, *, starts: int = 2, tell: Callable[[Row], None] | None = None
) -> list[Row]:
    """Measure one row a setting (by default `SETTINGS`) on the gradients of one example.

    Times are medians in milliseconds (``vs_copy``: relative to copying the difference once, measured in turn); bounds are
    relative to random orders of the same gradients, means over ``starts`` random orders to start from; ``wrong`` counts values
    with an error beyond the stated tolerance.
    """
    first, random = stored.start(), stored.random_bound()
    looked_at = _some_pairs(stored)
    exact = _inner_products(stored, first, looked_at)
    result = []
    for setting in SETTINGS if settings is None else settings:
        make = setting.build()
        differences = [stored.difference(first, rank, pair) for rank, pair in looked_at]
        row: Row = {"example": stored.example, "compressor": str(setting), "bytes": make.wire_bytes(stored.d)}
        row |= _times(make, differences) | _errors(make, differences, exact)
        projected = projections(stored, make)
        bounds = [reorder(stored, make, stored.start(seed), projected) for seed in range(starts)]
        row |= {f"bound_{epoch}": float(np.mean([found[epoch] for found in bounds])) / random for epoch in EPOCHS}
        result.append(row | {"wrong": _wrong(make, differences[:8])})
        if tell is not None:
            tell(result[-1])
    return result


def reorder(
    stored: Gradients, make: Compressor, orders: Orders, projected: NDArray[np.float32] | None
) -> dict[int, float]:
    """Measure the bound after each of `EPOCHS` of CD-GraB on compressed pair differences, at constant weights.

    Args:
        stored: the gradients.
        make: compresses the differences.
        orders: (W, n), the first orders.
        projected: from `projections`.
    """
    ranks, n = orders.shape
    found = {}
    for epoch in range(1, max(EPOCHS) + 1):
        h, signs = np.zeros(make.width(stored.d), dtype=np.float32), []
        for expanded in _expanded(stored, make, orders, projected):
            signs.append(balance_pairs(expanded.numpy(), h)[0])
        bits = np.concatenate(signs).reshape(n // 2, ranks)
        orders = np.stack([next_order(orders[rank], bits[:, rank]) for rank in range(ranks)])
        if epoch in EPOCHS:
            found[epoch] = stored.bound(orders)
    return found


def throughput(d: int = 10_000_000) -> list[Row]:
    """Time the sketch against one copy of the gradient, and top-k against `torch.topk`: one thread, d normal floats."""
    vector = torch.randn(d, generator=torch.Generator().manual_seed(0))
    room, k = torch.empty_like(vector), max(1, d // 100)
    sketch, topk = build_compressor("sketch"), build_compressor("topk", ratio=0.01)
    with one_thread():
        folding, copying = _interleaved(lambda: sketch.compress(vector), lambda: room.copy_(vector))
        choosing, sorting = _interleaved(lambda: topk.compress(vector), lambda: torch.topk(vector.abs(), k))
    kept = int(np.count_nonzero(topk.expand(topk.compress(vector)).numpy()))
    return [
        {"compressor": name, "floats": d, "compress_ms": ms, "against": other, "its_ms": base, "ratio": ms / base, "wrong": wrong}
        for name, ms, other, base, wrong in (
            ("sketch width=4096", folding, "one copy", copying, 0),
            ("topk ratio=0.01", choosing, "torch.topk", sorting, abs(kept - k)),
        )
    ]


def _some_pairs(stored: Gradients) -> list[tuple[int, int]]:
    """Choose differences spread over the epoch: (rank, pair)."""
    ranks, n, _ = stored.values.shape
    every = [(rank, pair) for pair in range(n // 2) for rank in range(ranks)]
    return every[:: max(1, len(every) // LOOKED_AT)][:LOOKED_AT]


def _inner_products(stored: Gradients, orders: Orders, pairs: list[tuple[int, int]]) -> NDArray[np.float64]:
    """Inner products of the differences of these pairs: (m, m) float64."""
    n = orders.shape[1]
    first = np.array([rank * n + orders[rank, 2 * pair] for rank, pair in pairs])
    second = np.array([rank * n + orders[rank, 2 * pair + 1] for rank, pair in pairs])
    half = stored.gram[first] - stored.gram[second]
    products: NDArray[np.float64] = half[:, first] - half[:, second]
    return products


def _errors(make: Compressor, differences: list[torch.Tensor], exact: NDArray[np.float64]) -> Row:
    """Root mean square error of inner products of different vectors, relative to the product of their norms."""
    expanded = torch.stack([make.expand(make.compress(difference)) for difference in differences])
    found = (expanded @ expanded.T).double().numpy()
    norms = np.sqrt(exact.diagonal())
    relative = (found - exact) / np.maximum(np.outer(norms, norms), np.finfo(np.float64).tiny)
    return {"inner_error": float(np.sqrt(np.mean(relative[~np.eye(len(relative), dtype=bool)] ** 2)))}


def _wrong(make: Compressor, differences: list[torch.Tensor]) -> int:
    """Count the values with an error beyond the compressor's tolerance."""
    count = 0
    for difference in differences:
        wanted = difference if make.projection is None else make.projection.fold(difference)
        apart = (make.expand(make.compress(difference)).double() - wanted.double()).abs().numpy()
        count += int(np.count_nonzero(~(apart <= make.tolerance(difference))))
    return count


def _times(make: Compressor, differences: list[torch.Tensor]) -> Row:
    """Time compressing and expanding one difference, in milliseconds, and compressing over copying, in turns."""
    turns = iter(range(10**9))
    room, row = torch.empty_like(differences[0]), torch.empty(make.width(len(differences[0])))
    payloads = [make.compress(difference) for difference in differences]
    space = payloads[0].data.copy()

    def turn() -> int:
        return next(turns) % len(differences)

    compress, copy, expand = _interleaved(
        lambda: make.compress(differences[turn()], space),
        lambda: room.copy_(differences[turn()]),
        lambda: make.expand(payloads[turn()], row),
    )
    return {"compress_ms": compress, "vs_copy": compress / copy, "expand_ms": expand}


def _interleaved(*calls: Callable[[], object]) -> list[float]:
    """Median milliseconds of each call, in turns; short calls are repeated within a measurement."""
    counts = [max(1, min(200, int(2e-3 / max(1e-7, _seconds(call, 1))))) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(TIMED):
        for call, count, times in zip(calls, counts, found, strict=True):
            times.append(_seconds(call, count) / count * 1e3)
    return [median(times) for times in found]


def _seconds(call: Callable[[], object], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - began


def projections(stored: Gradients, make: Compressor) -> NDArray[np.float32] | None:
    """Project each unit's gradient, as ranks do: (W, n, width) float32; None if the compressor has no projection."""
    if make.projection is None:
        return None
    fold = make.projection.fold
    return np.stack([[fold(torch.from_numpy(vector)).numpy() for vector in units] for units in stored.values])


def _expanded(
    stored: Gradients, make: Compressor, orders: Orders, projected: NDArray[np.float32] | None
) -> Iterator[torch.Tensor]:
    """Yield what the designated rank sees, ordered by pair, then by rank: blocks (m, width) float32."""
    (ranks, n), width = orders.shape, make.width(stored.d)
    every = [(rank, pair) for pair in range(n // 2) for rank in range(ranks)]
    step = max(1, BATCH_BYTES // max(1, 4 * width))
    for start in range(0, len(every), step):
        part = every[start : start + step]
        payloads = np.empty((len(part), make.wire_bytes(stored.d)), dtype=np.uint8)
        for (rank, pair), out in zip(part, payloads, strict=True):
            if projected is None:
                make.compress(stored.difference(orders, rank, pair), out)
            else:
                first, second = projected[rank, orders[rank, 2 * pair : 2 * pair + 2]]
                make.encode(first - second, out)
        expanded = torch.empty(len(part), width)
        make.expand_many(payloads, expanded)
        yield expanded


def plot(found: Sequence[Row], path: Path) -> None:
    """Draw the bound after the last epoch against bytes, one panel an example, as PNG or SVG by the path's suffix.

    Raises:
        ImportError: matplotlib, an extra, is not installed.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    examples = list(dict.fromkeys(str(row["example"]) for row in found))
    with matplotlib.rc_context(cast(Any, plots._STYLE)):
        figure = Figure(figsize=(5.6 * len(examples), 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, example in zip(figure.subplots(1, len(examples), squeeze=False)[0], examples, strict=True):
            _draw(axes, example, [row for row in found if row["example"] == example])
        figure.savefig(path, dpi=150)


def _draw(axes: Any, example: str, found: Sequence[Row]) -> None:
    last = f"bound_{max(EPOCHS)}"
    families = list(dict.fromkeys(_family(row) for row in found))
    for color, family in enumerate(families):
        mine = sorted((cast(int, row["bytes"]), cast(float, row[last])) for row in found if _family(row) == family)
        style: dict[str, Any] = {"color": plots.PALETTE[color % len(plots.PALETTE)], "marker": "o", "markersize": 5}
        axes.plot(*zip(*mine, strict=True), label=family, linewidth=1.2, **style)
    dense = [cast(float, row[last]) for row in found if row["compressor"] == "none"]
    if dense:
        axes.axhline(dense[0], color="#8a93a0", linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    axes.set_xscale("log")
    axes.set_title(f"{example}: bound after {max(EPOCHS)} epochs, random = 1")
    axes.set_xlabel("bytes a pair and rank")
    axes.legend(loc="best", fontsize=9)


def _family(row: Row) -> str:
    """Name of the curve of a setting: all dense kinds, top-k by dtype, or sketches by dtype and parity of their width."""
    kind, *parts = str(row["compressor"]).split()
    options = dict(part.split("=") for part in parts)
    if kind not in ("topk", "sketch"):
        return "every value"
    return f"{kind} {options['dtype']}" + (", odd width" if int(options.get("width", 0)) % 2 else "")

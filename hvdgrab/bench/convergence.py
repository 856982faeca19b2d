"""``hvdgrab-bench convergence``: how fast an example learns under several data orders, one real run for each order and seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from hvdgrab.bench.runs import Site, Variant, run
from hvdgrab.report import plots

Row = dict[str, object]
REFERENCE = "rr"


@dataclass(frozen=True)
class Curve:
    """The curves of one run."""

    order: str
    seed: int
    train_loss: list[float | None]
    """Mean of the units' losses before their steps, for each epoch."""
    full_loss: list[float | None]
    """Loss of all training examples after each epoch, by which orders are compared."""
    bound_vs_random: list[float | None]
    """ℓ2 parallel herding bound of each epoch, 1.0 = random."""
    extra: dict[str, list[float | None]]
    """Other scalars that the example logs (accuracy, perplexity, SMAPE)."""
    seconds: float
    """Wall-clock time of the whole run."""


def convergence(
    train: Callable[[Variant, int], Curve], orders: Sequence[Variant], seeds: Sequence[int], *,
    tell: Callable[[Curve], None] | None = None,
) -> list[Curve]:  # fmt: skip
    """Train once for every seed and order."""
    curves = []
    for seed in seeds:
        for order in orders:
            curves.append(train(order, seed))
            if tell is not None:
                tell(curves[-1])
    return curves


def measure(site: Site, example: str, variant: Variant, seed: int, options: Sequence[str]) -> Curve:
    """Train once, and read the curves."""
    arguments = ["--order", variant.order, "--seed", str(seed), "--full-loss", *options]
    records, seconds = run(site, example, arguments, variant.grab)
    names = sorted({name for record in records for name in record.extra} - {"full_loss", "train_seconds"})
    return Curve(
        order=str(variant),
        seed=seed,
        train_loss=[record.train_loss for record in records],
        full_loss=[record.extra.get("full_loss") for record in records],
        bound_vs_random=[record.herding_l2_vs_random for record in records],
        extra={name: [record.extra.get(name) for record in records] for name in names},
        seconds=seconds,
    )


def epochs_to_reach(losses: Sequence[float | None], target: float | None) -> int | None:
    """Find the first epoch, counted from 1, whose loss is at or below ``target``; None if there is none."""
    if target is None:
        return None
    return next((epoch for epoch, loss in enumerate(losses, start=1) if loss is not None and loss <= target), None)


def rows(curves: Sequence[Curve]) -> list[Row]:
    """Compute one row an order: means over seeds, and epochs needed to reach the final loss of ``rr`` with the same seed."""
    targets = {curve.seed: curve.full_loss[-1] for curve in curves if curve.order == REFERENCE}
    result: list[Row] = []
    for order in dict.fromkeys(curve.order for curve in curves):
        mine = [curve for curve in curves if curve.order == order]
        late = -max(1, len(mine[0].bound_vs_random) // 4)
        reached = [epochs_to_reach(curve.full_loss, targets.get(curve.seed)) for curve in mine]
        row: Row = {
            "order": order,
            "seeds": len(mine),
            "full_loss": _mean([curve.full_loss[-1] for curve in mine]),
            "train_loss": _mean([curve.train_loss[-1] for curve in mine]),
            "epochs_to_rr": _median(reached),
            "of": len(mine[0].full_loss),
            # epoch 0 has random orders under every rule; the last quarter shows whether the effect lasts
            "bound": _mean([value for curve in mine for value in curve.bound_vs_random[1:]]),
            "bound_late": _mean([value for curve in mine for value in curve.bound_vs_random[late:]]),
        }
        row |= {name: _mean([curve.extra[name][-1] for curve in mine if name in curve.extra]) for name in mine[0].extra}
        result.append({**row, "seconds": median(curve.seconds for curve in mine)})
    return result


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) and known else None


def _median(values: Sequence[int | None]) -> float | None:
    """Median, with None ("never") as the largest value; None if the median is "never"."""
    ordered = sorted(float("inf") if value is None else value for value in values)
    middle = ordered[len(ordered) // 2] if ordered else float("inf")
    return None if middle == float("inf") else float(middle)


def to_json(curves: Sequence[Curve]) -> list[dict[str, object]]:
    """Convert the curves to plain data."""
    return [asdict(curve) for curve in curves]


def plot(curves: Sequence[Curve], path: Path, title: str) -> None:
    """Draw loss and bound by epoch, averaged over seeds, as PNG or SVG by the path's suffix.

    Raises:
        ImportError: matplotlib, an extra, is not installed.
    """
    orders = list(dict.fromkeys(curve.order for curve in curves))
    loss = [plots.Line(order, _average([curve.full_loss for curve in curves if curve.order == order])) for order in orders]
    bound = [plots.Line(order, _average([curve.bound_vs_random for curve in curves if curve.order == order])) for order in orders]
    loss_panel = plots.Panel(f"{title}: training loss", loss, log=True)
    plots.save([loss_panel, plots.Panel("Bound relative to random", bound, reference=1.0)], path)


def _average(series: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Mean over seeds for each epoch; None if a seed has no value."""
    return [_mean(values) for values in zip(*series, strict=True)]

"""``hvdgrab-bench overhead``: an example's step time with ``cd-grab`` against plain Horovod, in paired runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from hvdgrab.bench.runs import Site, Variant, run
from hvdgrab.examples.baseline import ORDER
from hvdgrab.report.metrics import EpochRecord

Row = dict[str, object]
CD_GRAB = Variant("cd-grab")
WARM_UP = 1
"""Epochs at the start of a run that are not timed."""
LOSS_FACTOR = 1.5
"""Ratio of final losses beyond which one of the two runs did not train."""


def overhead(
    site: Site, example: str, *, pairs: int, epochs: int, options: Sequence[str] = (), variant: Variant = CD_GRAB,
    tell: Callable[[Row], None] | None = None,
) -> list[Row]:  # fmt: skip
    """Run plain, ordered, plain, ordered, …, and measure one row for each pair.

    Step times are seconds of the training loop over units, without the first epoch and without evaluations.  ``wrong`` counts
    what invalidates a row: epochs that are missing or ran under another order, losses that are not finite, dropped pairs, final
    losses that are far apart.
    """
    rows: list[Row] = []
    for pair in range(pairs):
        common = ["--epochs", str(epochs + WARM_UP), "--seed", str(pair), *options]
        marks = [site.received()]
        plain, _ = run(site, example, [*common, "--no-grab"], {"debug": False})
        marks.append(site.received())
        ordered, _ = run(site, example, [*common, "--order", variant.order], {"debug": False, **variant.grab})
        marks.append(site.received())
        row = compare(plain, ordered, order=variant.order, epochs=epochs + WARM_UP)
        row |= wire(marks, units=sum(record.units or 0 for record in ordered), order=variant.order)
        rows.append({"example": example, "ranks": site.world, "compression": variant.compression, "pair": pair, **row})
        if tell is not None:
            tell(rows[-1])
    return rows


def wire(marks: Sequence[int | None], *, units: int, order: str) -> Row:
    """Kilobytes a unit that the busiest host received in the two runs between three marks, start and end of the runs included."""
    first, second, third = marks
    if first is None or second is None or third is None or not units:
        return {}
    return {"plain_kB": (second - first) / units / 1000, f"{order}_kB": (third - second) / units / 1000}


def compare(plain: Sequence[EpochRecord], ordered: Sequence[EpochRecord], *, order: str, epochs: int) -> Row:
    """Compute the row of one pair of runs."""
    before, after = step_ms(plain), step_ms(ordered)
    return {
        "plain_ms": before,
        f"{order}_ms": after,
        "more_ms": after - before,
        "ratio": after / before if before else math.nan,
        "plain_loss": plain[-1].train_loss,
        f"{order}_loss": ordered[-1].train_loss,
        "wrong": wrong(plain, ORDER, epochs) + wrong(ordered, order, epochs) + _far_apart(plain[-1], ordered[-1]),
    }


def step_ms(records: Sequence[EpochRecord]) -> float:
    """Median milliseconds a unit over the timed epochs; NaN if none was timed."""
    timed = [
        1000 * record.extra["train_seconds"] / record.units
        for record in records
        if record.epoch >= WARM_UP and record.units and "train_seconds" in record.extra
    ]
    return median(timed) if timed else math.nan


def wrong(records: Sequence[EpochRecord], order: str, epochs: int) -> int:
    """Count the epochs that are missing, ran under another order, dropped pairs, or have no finite loss."""
    bad = sum(record.order != order or record.train_loss is None or bool(record.pairs_dropped) for record in records)
    return bad + abs(epochs - len(records))


def _far_apart(plain: EpochRecord, ordered: EpochRecord) -> int:
    if not plain.train_loss or not ordered.train_loss:
        return 0  # counted by `wrong`
    quotient = plain.train_loss / ordered.train_loss
    return int(not 1 / LOSS_FACTOR <= quotient <= LOSS_FACTOR)


def summary(rows: Sequence[Row]) -> Row:
    """Compute the medians over the pairs."""
    numbers = {name: [value for row in rows if isinstance(value := row[name], float)] for name in rows[0]}
    middle = {name: median(values) for name, values in numbers.items() if values}
    wrongs = sum(value for row in rows if isinstance(value := row["wrong"], int))
    return {**{name: middle.get(name, rows[0][name]) for name in rows[0]}, "pair": "median", "wrong": wrongs}

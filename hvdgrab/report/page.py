"""A job's (or several jobs') training as one page, JOBDIR/report.html.

The page needs no network and no other file.  With several job directories their curves lie over each other, for comparing
orders; the page is comparison.html in the first.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdgrab.errors import HvdGrabError
from hvdgrab.report import metrics, plots
from hvdgrab.report.metrics import EpochRecord

FILE_NAME, COMPARISON = "report.html", "comparison.html"
NO_PLOTS = "The plots need matplotlib: <code>pip install 'hvdgrab[report]'</code>, then make the report again."


class ReportError(HvdGrabError, RuntimeError):
    """There is nothing to report on."""


@dataclass(frozen=True)
class Job:
    """What a job directory holds for the report."""

    name: str
    records: list[EpochRecord]
    problems: list[str]

    @property
    def order(self) -> str:
        """The rule that ordered the last epoch."""
        return self.records[-1].order

    def column(self, name: str) -> list[float | None]:
        """A field or a logged scalar of every epoch from 0; None for epochs that have no line."""
        values = {record.epoch: _value(record, name) for record in self.records}
        return [values.get(epoch) for epoch in range(self.records[-1].epoch + 1)]


def write(directories: Sequence[Path]) -> Path:
    """Write the report of one or several job directories into the first, and return its path.

    Raises:
        ReportError: a directory has no epochs.
        OSError: the page cannot be written.
    """
    jobs = [load(directory) for directory in directories]
    target = directories[0] / (FILE_NAME if len(directories) == 1 else COMPARISON)
    part = target.with_suffix(".html.part")
    part.write_text(render(jobs), encoding="utf-8")
    part.replace(target)
    return target


def load(directory: Path) -> Job:
    """Read a job directory.

    Raises:
        ReportError: it has no epochs.
    """
    path = directory / metrics.FILE_NAME
    found = metrics.read(path)
    if not found.records:
        reason = "; ".join(found.problems) or ("it is empty" if path.exists() else "it does not exist")
        raise ReportError(f"no finished epoch in {path}: {reason}")
    return Job(directory.resolve().name, metrics.latest(found.records), found.problems)


def render(jobs: Sequence[Job]) -> str:
    """The whole page; everything that comes from a job is escaped."""
    title = jobs[0].name if len(jobs) == 1 else f"{len(jobs)} jobs compared"
    problems = [f"{job.name}: {problem}" for job in jobs for problem in job.problems]
    notes = "".join(f'<p class="note">{html.escape(problem)}</p>' for problem in problems)
    return _PAGE.format(
        title=html.escape(title), lead=_lead(jobs), summary=_summary(jobs), figures=_figures(jobs),
        epochs="".join(_epoch_table(job) for job in jobs), notes=notes,
    )  # fmt: skip


def _lead(jobs: Sequence[Job]) -> str:
    """One sentence a job about its progress."""
    sentences = []
    for job in jobs:
        last = job.records[-1]
        planned = f" of {last.epochs}" if last.epochs else ""
        loss = "" if last.train_loss is None else f", training loss {_number(last.train_loss)}"
        bound = "" if last.herding_l2_vs_random is None else f", herding bound {_number(last.herding_l2_vs_random)} of random"
        sentences.append(f"<strong>{html.escape(job.order)}</strong>: {last.epoch + 1}{planned} epochs{loss}{bound}.")
    return " ".join(sentences)


Column = tuple[str, str, Callable[[Job], str]]


def _summary(jobs: Sequence[Job]) -> str:
    columns = _COLUMNS if len(jobs) > 1 else _COLUMNS[1:]  # one job's name is the page's title
    head = "".join(f'<th title="{html.escape(hint)}">{html.escape(name)}</th>' for name, hint, _ in columns)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell(job))}</td>" for *_, cell in columns) + "</tr>" for job in jobs)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _last(name: str) -> Callable[[Job], str]:
    return lambda job: _number(getattr(job.records[-1], name))


def _mean(name: str) -> Callable[[Job], str]:
    def cell(job: Job) -> str:
        # Leave out the first epoch if there are more: its orders are random whatever the rule, and its steps warm up.
        values = [value for record in job.records[1:] or job.records if (value := getattr(record, name)) is not None]
        return _number(sum(values) / len(values) if values else None)

    return cell


def _bytes(job: Job) -> str:
    sent, dense = (sum(getattr(record, name) or 0 for record in job.records) for name in ("bytes_sent", "bytes_dense"))
    if not dense:
        return _number(None)
    return f"{_size(sent)} ({sent / dense:.0%} of dense)" if sent != dense else _size(sent)


def _pairs(job: Job) -> str:
    if all(record.pairs is None for record in job.records):
        return _number(None)
    dropped = sum(record.pairs_dropped or 0 for record in job.records)
    return f"{sum(record.pairs or 0 for record in job.records):,}" + (f" ({dropped} dropped)" if dropped else "")


_COLUMNS: tuple[Column, ...] = (
    ("job", "name of the job directory", lambda job: job.name),
    ("order", "rule that ordered the data", lambda job: job.order),
    ("ranks", "number of ranks", _last("ranks")),
    ("epochs", "finished epochs", lambda job: str(job.records[-1].epoch + 1)),
    ("final loss", "mean training loss of the last epoch", _last("train_loss")),
    ("bound vs random", "herding bound over that of random orders, from the second epoch on", _mean("herding_l2_vs_random")),
    ("pairs", "pairs balanced in the whole run", _pairs),
    ("sent", "bytes of pair differences in the whole run", _bytes),
    ("step ms", "time from one unit to the next, mean over epochs", _mean("step_ms")),
    ("ordering ms", "part of the step that ordering took", _mean("ordering_ms")),
)


def _figures(jobs: Sequence[Job]) -> str:
    try:
        drawn = [plots.svg(panel) for panel in _panels(jobs)]
    except ImportError:
        return f'<p class="note">{NO_PLOTS}</p>'
    return "".join(f"<figure>{text}</figure>" for text in drawn)


def _panels(jobs: Sequence[Job]) -> list[plots.Panel]:
    """The plots for which at least one job has values."""
    names = [job.order if [other.order for other in jobs].count(job.order) == 1 else f"{job.order} · {job.name}" for job in jobs]

    def lines(column: str, suffix: str = "", dashed: bool = False) -> list[plots.Line]:
        values = [job.column(column) for job in jobs]
        return [
            plots.Line(name + suffix, line, color, dashed)
            for color, (name, line) in enumerate(zip(names, values, strict=True))
            if any(value is not None for value in line)
        ]

    further = sorted({name for job in jobs for record in job.records for name in record.extra} - {"train_seconds"})
    steps = lines("step_ms", ", step") + lines("ordering_ms", ", ordering", dashed=True)
    panels = [
        plots.Panel("Training loss", lines("train_loss"), log=True),
        plots.Panel("Herding bound relative to random orders", lines("herding_l2_vs_random"), reference=1.0),
        plots.Panel("Time of a step", steps, unit="milliseconds", from_zero=True),
        *(plots.Panel(name.replace("_", " ").capitalize(), lines(name), log="loss" in name) for name in further),
    ]
    return [panel for panel in panels if panel.lines]


def _epoch_table(job: Job) -> str:
    """Every number of every epoch, folded away."""
    fields = ("epoch", "train_loss", "herding_l2", "herding_linf", "herding_l2_vs_random", "pairs", "pairs_dropped", "bytes_sent")
    extra = sorted({name for record in job.records for name in record.extra})
    names = [*fields, "step_ms", "ordering_ms", "seconds", *extra]
    shown = [name for name in names if any(_value(record, name) is not None for record in job.records)]
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in shown)
    cells = [[f"<td>{html.escape(_number(_value(record, name)))}</td>" for name in shown] for record in job.records]
    rows = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    label = html.escape(f"All epochs of {job.name} ({job.order})")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<details><summary>{label}</summary><div class="wide">{table}</div></details>'


def _value(record: EpochRecord, name: str) -> float | None:
    value: float | None = record.extra[name] if name in record.extra else getattr(record, name, None)
    return value


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · hvdgrab</title>
<style>
body {{ margin: 0; background: #f6f7f9; color: #1d2430; font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif }}
main {{ max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px }}
h1 {{ font-size: 26px; line-height: 1.2; margin: 0 0 6px }}
p.lead {{ color: #4a5361; margin: 0 0 28px }}
section, details {{ background: #fff; border: 1px solid #e3e7ec; border-radius: 10px; margin: 0 0 20px }}
section {{ overflow-x: auto }}
.figures {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 20px; margin: 0 0 20px }}
figure {{ margin: 0; padding: 16px; background: #fff; border: 1px solid #e3e7ec; border-radius: 10px }}
figure svg {{ display: block; width: 100%; height: auto }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
th, td {{ padding: 9px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid #eef1f4 }}
tbody tr:last-child td {{ border-bottom: 0 }}
th {{ font-size: 12px; font-weight: 600; color: #4a5361 }}
th:first-child, td:first-child {{ text-align: left }}
.jobs {{ font-size: 13.5px }}
.jobs th, .jobs td {{ padding: 9px 10px }}
summary {{ padding: 12px 16px; cursor: pointer; color: #4a5361 }}
.wide {{ overflow-x: auto; font-size: 13px }}
.note {{ padding: 12px 16px; background: #fff8e6; border: 1px solid #f0dfae; border-radius: 10px }}
footer {{ color: #6b7482; font-size: 13px }}
@media (max-width: 560px) {{ .figures {{ grid-template-columns: 1fr }} }}
@media print {{ body {{ background: #fff }} }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="lead">{lead}</p>
{notes}
<section class="jobs">{summary}</section>
<div class="figures">{figures}</div>
{epochs}
<footer>Herding bound: how far the ranks' joint prefix sums of gradients stray from their mean; 1.0 is what random
orders of the same gradients give, less is better. Random reshuffling itself is often below 1.0, since each step changes the
gradients after it: compare with a run of order rr. The first epoch's order is random under every rule.</footer>
</main>
</body>
</html>
"""

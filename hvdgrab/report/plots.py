"""Line plots of epochs, as SVG inside a page or as a file.  Needs matplotlib (the extra ``report``), imported on use."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000")
"""Okabe and Ito's colours, which stay apart for colour-blind readers."""
_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": "#c4c9d0",
    "axes.labelcolor": "#4a5361",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#eceff3",
    "text.color": "#1d2430",
    "xtick.color": "#4a5361",
    "ytick.color": "#4a5361",
    "legend.frameon": False,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "path",  # readable on a machine without our fonts
    "svg.hashsalt": "hvdgrab",  # same data, same bytes
}


@dataclass(frozen=True)
class Line:
    """One curve: a value for each epoch from 0; None leaves a gap."""

    label: str
    values: Sequence[float | None]
    color: int | None = None
    """Index into the palette; by default the curve's place in its panel."""
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    lines: Sequence[Line]
    unit: str = ""
    """Label of the vertical axis."""
    reference: float | None = None
    """A value to be marked by a dashed line."""
    log: bool = False
    """Make the axis logarithmic if all values are positive and span more than a factor of ten."""
    from_zero: bool = False
    """Whether the vertical axis begins at 0."""


def svg(panel: Panel, width: float = 6.4, height: float = 3.4) -> str:
    """The panel as an ``<svg>`` element (without XML prologue) of the given size in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    target = io.StringIO()
    _draw([panel], target, "svg", width, height)
    text = target.getvalue()
    return text[text.index("<svg") :]


def save(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels beside each other to a PNG or SVG file, by the path's suffix.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with path.open("wb") as target:
        _draw(panels, target, path.suffix.removeprefix(".") or "png", 5.6 * len(panels), 3.6)


def _draw(panels: Sequence[Panel], target: Any, kind: str, width: float, height: float) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(cast(Any, _STYLE)):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _fill(axes, panel)
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {}
        figure.savefig(target, format=kind, dpi=150, metadata=metadata)


def _fill(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    for index, line in enumerate(panel.lines):
        values = [math.nan if value is None else value for value in line.values]
        color = PALETTE[(index if line.color is None else line.color) % len(PALETTE)]
        marker = "o" if len(values) < 15 else None
        style = (0, (3, 1.6)) if line.dashed else "-"
        marks: dict[str, Any] = {"linestyle": style, "marker": marker, "markersize": 4}
        axes.plot(range(1, len(values) + 1), values, color=color, label=_plain(line.label), **marks)
    if panel.reference is not None:
        axes.axhline(panel.reference, color="#8a93a0", linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    if panel.log and _spans_decades(panel):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    longest = max((len(line.values) for line in panel.lines), default=1)
    axes.set_xlim(1 - 0.03 * longest, longest + 0.03 * longest)
    axes.set_title(panel.title)
    axes.set_xlabel("epoch")
    axes.set_ylabel(panel.unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if any(line.label for line in panel.lines):
        axes.legend(loc="best", fontsize=9, handlelength=2.8)


def _plain(label: str) -> str:
    """matplotlib reads ``$…$`` as mathematics, and hides labels that begin with an underscore."""
    return label.replace("$", r"\$") if not label.startswith("_") else f" {label}".replace("$", r"\$")


def _spans_decades(panel: Panel) -> bool:
    values = [value for line in panel.lines for value in line.values if value is not None]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 10

"""Tables and colours without a library: `ls` must answer at once, with a thousand jobs too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from launcher.jobdir.words import CANCELLED, FAILED, RESTARTING, RUNNING, STARTING, SUCCEEDED, UNKNOWN

_COLOURS = {
    SUCCEEDED: "32",
    FAILED: "31",
    CANCELLED: "33",
    UNKNOWN: "35",
    RUNNING: "36",
    STARTING: "36",
    RESTARTING: "33",
}


def colourful(stream: TextIO) -> bool:
    """Whether a stream takes colours: a terminal, and nobody asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def painted(line: str, state: str) -> str:
    """A line of a table with the word of its state in that state's colour."""
    code = _COLOURS.get(state)
    return line.replace(f"  {state}", f"  \x1b[{code}m{state}\x1b[0m", 1) if code else line


def facts(pairs: Sequence[tuple[str, object]]) -> list[str]:
    """A line for each name with a value, the values below each other."""
    present = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in present), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in present]

"""The answer on a terminal, in a file, or as JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from launcher.cli.doctor.checks import Check, Report

_COLOURS = {"ok": "32", "note": "33", "missing": "31"}


def print_report(report: Report, *, as_json: bool) -> None:
    """Print it on stdout."""
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print("\n".join(lines(report, width=shutil.get_terminal_size((120, 24)).columns, colour=colour)))


def lines(report: Report, *, width: int, colour: bool) -> list[str]:
    """A line a check, longer ones folded, then each fault with its fix, then the verdict."""
    widest = max((len(check.name) for check in report.checks), default=0)
    rows = [line for check in report.checks for line in _row(check, widest, width, colour)]
    fixes = [line for check in report.checks if check.fix for line in _fix(check, width, colour)]
    verdict = "Training can start." if report.ok else "Training cannot start: see the lines marked missing."
    return [*rows, "", *fixes, *([""] if fixes else []), verdict]


def _row(check: Check, widest: int, width: int, colour: bool) -> Sequence[str]:
    indent = widest + 11
    found = textwrap.wrap(check.found, max(30, width - indent), break_on_hyphens=False) or [""]
    state = _painted(check.state.ljust(7), check.state, colour)
    return [f"{check.name.ljust(widest)}  {state}  {found[0]}", *(" " * indent + text for text in found[1:])]


def _fix(check: Check, width: int, colour: bool) -> Sequence[str]:
    text = textwrap.wrap(f"{check.name}: {check.fix}", max(40, width), subsequent_indent="  ", break_on_hyphens=False)
    return [_painted(text[0][: len(check.name) + 1], check.state, colour) + text[0][len(check.name) + 1 :], *text[1:]]


def _painted(text: str, state: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if colour else text

"""What the doctor says: lines with a state, what was found, and the fix; on a terminal, in a file, or as JSON."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import launcher
from launcher.cli.texts import colourful

State = Literal["ok", "missing", "note"]
_COLOURS = {"ok": "32", "note": "33", "missing": "31"}


@dataclass(frozen=True)
class Check:
    """One line of the answer."""

    name: str
    state: State
    """"ok"; "missing": training cannot work, see `fix`; "note": training works, see `fix` for what would be better."""

    found: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """All lines of the answer."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether all that training needs is there."""
        return all(check.state != "missing" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}


def checkout() -> Path | None:
    """The project's checkout that holds this package; None if it is installed."""
    root = Path(launcher.__file__).resolve().parents[1]
    return root if (root / "Makefile").exists() and (root / "launcher" / "bootstrap").is_dir() else None


def remedy(package: str, alone: str) -> str:
    """How to get a package: the one command of a checkout, or the one for an environment of the user's own."""
    root = checkout()
    if root is not None:
        return f"`make setup` in {root} makes an environment with {package}; in an environment of your own: `{alone}`"
    return f"`{alone}` with this Python"


def print_report(report: Report, *, as_json: bool) -> None:
    """Print it on stdout."""
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    print("\n".join(lines(report, width=shutil.get_terminal_size((120, 24)).columns, colour=colourful(sys.stdout))))


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

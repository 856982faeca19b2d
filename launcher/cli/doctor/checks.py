"""What the doctor says: lines with a state, what was found, and the fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import launcher

State = Literal["ok", "missing", "note"]


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
    """The project's checkout that holds this package; None where it is installed."""
    root = Path(launcher.__file__).resolve().parents[1]
    return root if (root / "Makefile").exists() and (root / "launcher" / "bootstrap").is_dir() else None


def remedy(package: str, alone: str) -> str:
    """How to get a package: the one command of a checkout, or the one for an environment of the user's own."""
    root = checkout()
    if root is not None:
        return f"`make setup` in {root} makes an environment with {package}; in an environment of your own: `{alone}`"
    return f"`{alone}` with this Python"

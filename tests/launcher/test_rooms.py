"""The launcher's rooms: imports go one way, and nothing lies loose."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.real import ROOT

ROOMS = ("cli", "daemon", "slurm", "attempt", "plan", "spec", "jobdir", "host", "errors")
"""Each may use all to its right; ``bootstrap`` stands apart, and only ``cli`` uses it."""
LOOSE = {"__init__", "__main__", "supervise", "errors"}
ABOVE = {"__main__": {"cli"}, "supervise": {"slurm", "attempt", "plan", "jobdir", "host", "errors"}}
"""What the loose programs use."""


def imported(path: Path) -> set[str]:
    """Modules of the launcher that a file imports, wherever in it, annotations included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "launcher" else {node.module}
    return {name for name in names if name.startswith("launcher.")}


def allowed(room: str) -> set[str]:
    """The rooms that a room may import from."""
    if room == "bootstrap":
        return {"bootstrap"}
    if room in ABOVE:
        return ABOVE[room]
    below = set(ROOMS[ROOMS.index(room) :])
    return below | {"bootstrap"} if room == "cli" else below


FILES = [path for path in sorted((ROOT / "launcher").rglob("*.py")) if path != ROOT / "launcher" / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_launchers_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "launcher").parts[0].removesuffix(".py")
    upward = {name for name in imported(path) if name.split(".")[1] not in allowed(room)}
    assert not upward, f"{room} may not import {', '.join(sorted(upward))}"


def test_nothing_lies_loose_in_the_launcher() -> None:
    assert {path.stem for path in (ROOT / "launcher").glob("*.py")} == LOOSE
    folders = {path.name for path in (ROOT / "launcher").iterdir() if path.is_dir()}
    assert folders - {"__pycache__", "_shipped"} == {*ROOMS, "bootstrap"} - {"errors"}

"""Figures of the house, from its own imports: ``python -m tests.house``.

Rooms are the folders of a package and its loose modules.  An arrow is a pair of rooms of which one imports the other; it points
upward if the room may not use the other.  A circle is a set of rooms each of which leads to every other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = ("cli", "daemon", "slurm", "attempt", "plan", "spec", "jobdir", "host", "errors")
"""Each room of the launcher may use all to its right; ``bootstrap`` stands apart, and ``cli`` alone uses it."""
LOOSE = {"__main__": {"cli"}, "supervise": set(LAUNCHER) - {"cli", "daemon"}, "errors": set()}
"""The launcher's loose modules, and the rooms that they may use."""


def files(package: str) -> list[Path]:
    """The source files of a package."""
    return sorted(path for path in (ROOT / package).rglob("*.py") if "_shipped" not in path.parts)


def room_of(path: Path) -> str:
    """The room in which a file of a package lies; a loose module is its own."""
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Modules that a file imports, wherever in it, those for annotations included."""
    names: set[str] = set()
    package = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if node.module == package else {node.module}
    return names


def arrows(package: str) -> dict[str, set[str]]:
    """By room, the other rooms of its package that it imports."""
    found: dict[str, set[str]] = {}
    for path in files(package):
        room = room_of(path)
        names = {name.split(".")[1] for name in imported(path) if name.startswith(f"{package}.")}
        found.setdefault(room, set()).update(names - {room})
    return {room: others & found.keys() for room, others in found.items()}


def allowed(room: str) -> set[str]:
    """The rooms of the launcher that one of them may use."""
    if room == "bootstrap":
        return set()
    if room in LOOSE:
        return LOOSE[room]
    return set(LAUNCHER[LAUNCHER.index(room) + 1 :]) | ({"bootstrap"} if room == "cli" else set())


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Sets of rooms that lead to each other."""
    reach = {room: _reached(room, edges) for room in edges}
    groups = {frozenset(other for other in reach[room] if room in reach.get(other, ())) for room in edges if room in reach[room]}
    return [set(group) for group in groups]


def _reached(room: str, edges: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [*edges[room]]
    while todo:
        other = todo.pop()
        if other not in seen:
            seen.add(other)
            todo += edges.get(other, ())
    return seen


def figures() -> Iterator[str]:
    """A line a figure."""
    for package in ("launcher", "hvdgrab"):
        edges = {room: others for room, others in arrows(package).items() if room != "__init__"}
        lines = sum(path.read_text().count("\n") for path in files(package))
        loose = [path.stem for path in (ROOT / package).glob("*.py") if path.stem != "__init__"]
        yield f"{package}: {len(files(package))} files, {lines} lines; {len(loose)} loose modules: {', '.join(sorted(loose))}"
        yield f"{package}: {sum(map(len, edges.values()))} arrows between rooms, {len(circles(edges))} circles"
    upward = {room: others - allowed(room) for room, others in arrows("launcher").items() if room != "__init__"}
    yield f"launcher: {sum(map(len, upward.values()))} upward arrows"


if __name__ == "__main__":
    print("\n".join(figures()))

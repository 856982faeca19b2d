"""The launcher's rooms: imports go one way, and nothing lies loose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import LAUNCHER, LOOSE, ROOT, allowed, arrows, circles, files, imported, room_of

FILES = [path for path in files("launcher") if path != ROOT / "launcher" / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_launchers_imports_go_one_way(path: Path) -> None:
    room = room_of(path)
    used = {name for name in imported(path) if name.startswith("launcher.")}
    upward = {name for name in used if name.split(".")[1] not in {room, *allowed(room)}}
    assert not upward, f"{room} may not import {', '.join(sorted(upward))}"


@pytest.mark.parametrize("package", ["launcher", "hvdgrab"])
def test_rooms_form_no_circle(package: str) -> None:
    assert circles({room: others for room, others in arrows(package).items() if room != "__init__"}) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_nothing_lies_loose_in_the_launcher() -> None:
    assert {path.stem for path in (ROOT / "launcher").glob("*.py")} == {"__init__", *LOOSE}
    assert {room_of(path) for path in FILES} - {*LOOSE} == {*LAUNCHER, "bootstrap"} - {"errors"}

"""The house rules that a machine can hold: imports go one way, importing is cheap, and what is promised exists."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import hvdgrab
from tests.house import ROOT, arrows, circles, files, imported, room_of

LEVELS = [
    {"errors"},
    {"gpu", "config", "report"},
    {"balance"},
    {"compression", "comm"},
    {"coordinator"},
    {"training"},
    {"server"},
    {"examples"},
    {"bench"},
]
"""Rooms of ``hvdgrab``; each may import from the levels before its own, and from no other room."""
HEAVY = {"torch", "mpi4py", "horovod", "matplotlib", "sklearn", "numba", "triton"}


def level(room: str) -> int:
    (found,) = [number for number, rooms in enumerate(LEVELS) if room in rooms]
    return found


@pytest.mark.parametrize("path", [path for path in files("hvdgrab") if room_of(path) != "__init__"], ids=str)
def test_imports_go_one_way(path):
    room = room_of(path)
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] != "launcher", f"{path}: hvdgrab must not need the launcher"
        if parts[0] != "hvdgrab" or len(parts) == 1 or parts[1] in (room, "__version__"):
            continue
        if parts[1] in hvdgrab.__all__ and room in ("examples", "bench"):  # users of the package
            continue
        assert level(parts[1]) < level(room), f"{path}: {room} imports {parts[1]}"


def test_no_rooms_import_each_other_in_a_circle():
    edges = {room: others for room, others in arrows("hvdgrab").items() if room != "__init__"}
    assert circles(edges) == []
    assert set(edges) == set().union(*LEVELS), "every room has a level"


@pytest.mark.parametrize("room", ["balance", "compression"])
def test_the_pure_rooms_know_no_communication(room):
    for path in (ROOT / "hvdgrab" / room).rglob("*.py"):
        assert not {name.split(".")[0] for name in imported(path)} & {"mpi4py", "horovod"}, path


def test_the_launcher_takes_only_the_settings_from_hvdgrab():
    for path in (ROOT / "launcher").rglob("*.py"):
        modules = {name for name in imported(path) if name.split(".")[0] in HEAVY | {"hvdgrab"}}
        assert modules <= {"hvdgrab", "hvdgrab.config", "hvdgrab.errors", "hvdgrab.__version__"}, f"{path}: {modules}"


@pytest.mark.parametrize("module", ["hvdgrab", "hvdgrab.config", "hvdgrab.balance", "launcher.cli.main"])
def test_importing_is_cheap(module):
    program = f"import sys, {module}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.split() == []


def test_all_is_what_can_be_imported():
    assert sorted(hvdgrab.__all__) == dir(hvdgrab)
    for name in hvdgrab.__all__:
        assert getattr(hvdgrab, name) is not None
    for package in ("balance", "compression"):
        module = importlib.import_module(f"hvdgrab.{package}")
        assert all(hasattr(module, name) for name in module.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'GrabSampler'; it has GraBConfig"):
        _ = hvdgrab.GrabSampler


def test_every_error_is_a_hvdgrab_error_and_stands_in_the_tree():
    errors = importlib.import_module("hvdgrab.errors")
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert all(issubclass(value, hvdgrab.HvdGrabError) for value in classes)
    assert all(value.__name__ in (errors.__doc__ or "") for value in classes)

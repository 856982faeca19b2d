from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.plan import facts, mpi
from launcher.plan.mpi import without_foreign_prefix

BANNERS = [
    ("mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n", ("openmpi", (4, 1, 8))),
    ("mpirun (Open MPI) 5.0.8\n", ("openmpi", (5, 0, 8))),
    ("mpirun (OpenRTE) 2.1.1\n", ("openmpi", (2, 1, 1))),
    ("HYDRA build details:\n    Version:                                 4.3.2\n    Release Date: x\n", ("mpich", (4, 3, 2))),
    ("Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)\n", ("intel", (2021, 9))),
    ("slurmstepd: error\n", ("unknown", ())),
    ("", ("unknown", ())),
]


@pytest.mark.parametrize(("text", "expected"), BANNERS)
def test_versions_are_read(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert mpi.parse_version(text) == expected


def shim(folder: Path, body: str) -> str:
    path = folder / "mpirun"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "banner"),
    [
        ("exec sleep 30", "--version: no answer within"),
        ("printf '\\377\\376\\000garbage'", "garbage"),
        ("exit 3", "--version ended with 3: nothing was printed"),
        ("echo half; kill -9 $$", "--version ended with -9: half"),
        ("exit 0", "nothing was printed"),
    ],
)
def test_sick_tools_are_unknown_and_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, banner: str) -> None:
    monkeypatch.setattr(mpi, "PROBE_SECONDS", 0.5)
    found = mpi.probe_mpirun(shim(tmp_path, body))
    assert (found.flavour, found.version) == ("unknown", ())
    assert banner in found.banner


def test_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    path = tmp_path / "mpirun"
    path.write_bytes(b"\x7fELFnonsense")
    path.chmod(0o755)
    assert "cannot be run" in mpi.probe_mpirun(str(path)).banner


def test_path_comes_before_the_interpreters_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shim(tmp_path, "echo 'mpirun (Open MPI) 4.9.9'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = facts.collect()
    assert found.mpirun is not None
    assert (found.mpirun.path, found.mpirun.version, found.mpirun.label) == (path, (4, 9, 9), "Open MPI 4.9.9")
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.root == (os.geteuid() == 0)


def test_facts_hold_names_of_variables_and_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2hunter2")
    found = facts.collect()
    assert "API_TOKEN" in found.environment
    assert "hunter2" not in repr(found)


def test_another_mpi_is_not_misled_by_the_environments_own() -> None:
    own, other = f"{sys.prefix}/bin/mpirun", "/opt/mpi/bin/mpirun"
    given = {"OPAL_PREFIX": sys.prefix, "A": "b"}
    assert without_foreign_prefix(own, given) == given
    assert without_foreign_prefix(other, given) == {"A": "b"}
    assert without_foreign_prefix(other, {"OPAL_PREFIX": "/opt/mpi"}) == {"OPAL_PREFIX": "/opt/mpi"}, "the user's own word"

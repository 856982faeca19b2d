"""Programs beside MPI itself: horovodrun, and what only building needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from launcher.bootstrap import toolchain
from launcher.bootstrap.errors import BootstrapError
from launcher.cli.doctor.checks import Check


def horovodrun_check(environ: Mapping[str, str]) -> Check:
    """horovodrun; jobs start through mpirun where it is not there."""
    found = shutil.which("horovodrun", path=environ.get("PATH"))
    if found is None:
        return Check("horovodrun", "note", "not on PATH", "it comes with Horovod; jobs are started with mpirun until then")
    return Check("horovodrun", "ok", found)


def compiler_check(environ: Mapping[str, str]) -> Check:
    """A C++ compiler; only building needs it."""
    try:
        compiler = toolchain.find_compiler(environ)
    except BootstrapError as error:
        return Check("C++ compiler", "note", "none that works", error.sentence)
    return Check("C++ compiler", "ok", f"{compiler.name} at {compiler.path}")


def wrapper_check(environ: Mapping[str, str]) -> Check:
    """mpicxx; only building needs it."""
    found = shutil.which("mpicxx", path=environ.get("PATH"))
    need = "Horovod and mpi4py are built with it: load the MPI's development module where they have to be built"
    return Check("mpicxx", "ok", found) if found else Check("mpicxx", "note", "not on PATH", need)

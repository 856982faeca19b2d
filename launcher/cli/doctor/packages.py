"""What is installed: torch, mpi4py, Horovod, whether the two use one MPI, and the programs beside MPI itself.

Every look at a package runs in a process of its own with a time limit: a broken torch or MPI cannot hang or crash the doctor.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

from launcher.bootstrap import toolchain
from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.probes import Probe
from launcher.cli.doctor.checks import Check, remedy

NEEDED = ("torch", "mpi4py", "horovod", "together")
EXTRAS = {
    "sklearn": ("scikit-learn", "the digits example and its job", "examples"),
    "matplotlib": ("matplotlib", "pictures in reports", "report"),
}
"""Modules that only some jobs need: the package, what needs it, hvdgrab's extra."""


def torch_check(probe: Probe) -> Check:
    """torch imports, which version it is, whether it sees GPUs."""
    if probe.answer is None:
        return Check("torch", "missing", probe.complaint, remedy("torch", "pip install torch"))
    cuda = probe.answer["cuda"]
    gpus = f"CUDA {cuda}, {probe.answer['gpus']} GPUs" if cuda else "CPU only"
    return Check("torch", "ok", f"{probe.answer['version']} ({gpus})")


def mpi4py_check(probe: Probe) -> Check:
    """mpi4py imports, starts MPI and gets full thread support."""
    fix = remedy("mpi4py", "python -m launcher.bootstrap mpi4py")
    if probe.answer is None:
        return Check("mpi4py", "missing", probe.complaint, fix)
    found = f"{probe.answer['version']}, {probe.answer['library']}"
    if not probe.answer["multiple"]:
        need = "use an MPI that gives MPI_THREAD_MULTIPLE: Horovod and hvdgrab call it from threads of their own"
        return Check("mpi4py", "missing", f"{found}, without MPI_THREAD_MULTIPLE", need)
    return Check("mpi4py", "ok", f"{found}, MPI_THREAD_MULTIPLE")


def horovod_check(probe: Probe) -> Check:
    """Horovod starts, has MPI inside, and what else it was built with."""
    fix = remedy("Horovod", "python -m launcher.bootstrap horovod")
    if probe.answer is None:
        return Check("Horovod", "missing", probe.complaint, fix)
    if not probe.answer["mpi"]:
        return Check("Horovod", "missing", f"{probe.answer['version']}, built without MPI", fix)
    return Check("Horovod", "ok", f"{probe.answer['version']} with {_kinds(probe.answer)}")


def _kinds(answer: Mapping[str, object]) -> str:
    kinds = [name for name, key in (("NCCL", "nccl"), ("CUDA", "cuda"), ("Gloo", "gloo")) if answer.get(key)]
    return " and ".join(filter(None, [", ".join(["MPI", *kinds[:-1]]), *kinds[-1:]]))


def one_mpi_check(probe: Probe) -> Check:
    """mpi4py and Horovod load one and the same MPI library."""
    fix = remedy("both against one MPI", "python -m launcher.bootstrap mpi4py && python -m launcher.bootstrap horovod")
    if probe.answer is None:
        return Check("one MPI", "missing", f"Horovod and mpi4py do not start together: {probe.complaint}", fix)
    libraries = list(probe.answer["libmpi"])
    if len(libraries) != 1:
        found = ", ".join(libraries) or "none seen"
        return Check("one MPI", "missing", f"Horovod and mpi4py load different libraries: {found}", fix)
    return Check("one MPI", "ok", libraries[0])


JUDGES: dict[str, Callable[[Probe], Check]] = {
    "torch": torch_check, "mpi4py": mpi4py_check, "horovod": horovod_check, "together": one_mpi_check,
}  # fmt: skip


def extra_check(name: str, probe: Probe) -> Check:
    """A package that only some jobs need."""
    label, purpose, extra = EXTRAS[name]
    if probe.answer is not None:
        return Check(label, "ok", str(probe.answer["version"]))
    return Check(label, "note", f"{name} cannot be imported", f"{purpose} need it: `pip install 'hvdgrab[{extra}]'`")


def horovodrun_check(environ: Mapping[str, str]) -> Check:
    """horovodrun; jobs start through mpirun if it is not there."""
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
    need = "Horovod and mpi4py are built with it: load the MPI's development module if they have to be built"
    return Check("mpicxx", "ok", found) if found else Check("mpicxx", "note", "not on PATH", need)

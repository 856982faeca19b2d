"""Looks at an environment from outside, each in a process of its own with a time limit.

A broken library can neither hang nor crash the one who asks.  After the set-up, `verify` asks whether the environment really
trains: one process, then two ranks; mpi4py and Horovod must be in one and the same MPI.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.bootstrap.commands import ask
from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.toolchain import Mpi

_MARK = "HVDGRAB-PROBE "

_LIBRARIES = """
def libraries():
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "/libmpi" in line}
    return sorted(path for path in paths if path.rsplit("/", 1)[1].startswith(("libmpi.", "libmpich.")))
"""

_SEND = f"import json\nprint({_MARK!r} + json.dumps(answer))\n"

PROGRAMS: dict[str, str] = {
    "torch": "import torch\nanswer = {'version': torch.__version__, 'cuda': torch.version.cuda, "
    "'gpus': torch.cuda.device_count()}",
    "mpi4py": _LIBRARIES
    + "import mpi4py\nfrom mpi4py import MPI\nanswer = {'version': mpi4py.__version__, 'libmpi': libraries(), "
    "'multiple': MPI.Query_thread() == MPI.THREAD_MULTIPLE, 'library': MPI.Get_library_version().splitlines()[0].strip(chr(0))}",
    "horovod": _LIBRARIES
    + "import horovod, horovod.torch as hvd\nhvd.init()\nanswer = {'version': horovod.__version__, 'mpi': bool(hvd.mpi_built()), "
    "'nccl': bool(hvd.nccl_built()), 'cuda': bool(hvd.cuda_built()), 'gloo': bool(hvd.gloo_built()), 'size': hvd.size(), "
    "'libmpi': libraries()}\nhvd.shutdown()",
    "together": _LIBRARIES
    + "import horovod.torch as hvd\nhvd.init()\nfrom mpi4py import MPI\nanswer = {'libmpi': libraries(), 'size': hvd.size(), "
    "'world': MPI.COMM_WORLD.Get_size()}",
    "sklearn": "import sklearn\nanswer = {'version': sklearn.__version__}",
    "matplotlib": "import matplotlib\nanswer = {'version': matplotlib.__version__}",
}
"""What each probe runs; `answer` is sent back."""

SMOKE = f"""{_LIBRARIES}
import torch
import horovod.torch as hvd
from mpi4py import MPI
hvd.init()
total = float(hvd.allreduce(torch.ones(1) * (hvd.rank() + 1), op=hvd.Sum, name="smoke"))
answer = dict(size=hvd.size(), world=MPI.COMM_WORLD.Get_size(), total=total, libmpi=libraries())
if hvd.rank() == 0:
    import json
    print({_MARK!r} + json.dumps(answer))
"""
"""Two ranks add 1 and 2 through Horovod."""


@dataclass(frozen=True)
class Probe:
    """What a probe found: an answer, or why there is none."""

    answer: Mapping[str, Any] | None
    complaint: str = ""


def run_probe(name: str, python: str | Path, environ: Mapping[str, str], timeout: float = 90.0) -> Probe:
    """Run one of `PROGRAMS` under `python`."""
    return read_answer(*ask([python, "-c", PROGRAMS[name] + "\n" + _SEND], environ=single_process(environ), timeout=timeout))


def read_answer(code: int, out: str, err: str) -> Probe:
    """A probe's answer from what its process printed; anything else on standard output is passed over."""
    for line in out.splitlines():
        if _MARK in line:
            return Probe(json.loads(line.split(_MARK, 1)[1]))
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return Probe(None, (lines[-1] if lines else f"exit code {code} without a word")[:300])


def single_process(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process that is no rank of anything: one thread, and nothing of an outer MPI job or allocation."""
    foreign = ("OMPI_", "PMIX_", "PMI_", "HOROVOD_", "SLURM_", "PRTE_", "HYDRA_")
    kept = {name: value for name, value in environ.items() if not name.startswith(foreign) or name.startswith("OMPI_MCA_")}
    return {**kept, "OMP_NUM_THREADS": "1"}


def run_smoke(python: Path, environ: Mapping[str, str], mpirun: Path, flavour: str, timeout: float = 120.0) -> Probe:
    """An allreduce of two ranks under `mpirun`."""
    argv: list[str | Path] = [*mpirun_argv(mpirun, flavour), python, "-c", SMOKE]
    return read_answer(*ask(argv, environ=mpirun_environ(environ), timeout=timeout))


def mpirun_argv(mpirun: Path, flavour: str) -> list[str]:
    """The argv of two ranks on this host, however few its cores are."""
    extra = ["--oversubscribe", "--bind-to", "none"] if flavour == "Open MPI" else []
    return [str(mpirun), "-np", "2", *extra]


def mpirun_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """As root, Open MPI wants to be asked twice; the set-up's own two-second check does so."""
    consent = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
    return {**single_process(environ), **consent}


def find_mpirun(environ: Mapping[str, str]) -> Path | None:
    """mpirun on PATH, else mpiexec."""
    found = shutil.which("mpirun", path=environ.get("PATH")) or shutil.which("mpiexec", path=environ.get("PATH"))
    return Path(found) if found else None


_REBUILD = "build them anew: make setup REBUILD=1"


def verify(python: Path, mpi: Mpi, environ: Mapping[str, str], *, nccl: bool = False) -> str:
    """Check an environment, and return a line that says what was seen.

    Raises:
        BootstrapError: Horovod does not start, has no MPI, uses another MPI than mpi4py, or two ranks do not meet.
    """
    alone = _answer("starting Horovod in one process", run_probe("horovod", python, environ))
    if not alone["mpi"]:
        raise BootstrapError(f"Horovod was built without MPI; {_REBUILD}")
    if nccl and not alone["nccl"]:
        raise BootstrapError(f"Horovod was built without NCCL operations although GPU=nccl was asked for; {_REBUILD}")
    together = _answer("loading mpi4py beside Horovod", run_probe("together", python, environ))
    libraries = [str(library) for library in together["libmpi"]]
    if len(libraries) != 1:
        seen = ", ".join(libraries) or "none seen"
        raise BootstrapError(f"mpi4py and Horovod load different MPI libraries ({seen}); {_REBUILD}")
    if mpi.bundled and not Path(libraries[0]).is_relative_to(mpi.bin.parent):
        raise BootstrapError(f"{libraries[0]} is loaded instead of the environment's MPI; unset LD_LIBRARY_PATH and run again")
    mpirun = next((mpi.bin / name for name in ("mpirun", "mpiexec") if (mpi.bin / name).exists()), mpi.bin / "mpirun")
    pair = _answer(f"an allreduce of two ranks under {mpirun}", run_smoke(python, environ, mpirun, mpi.flavour))
    if (pair["size"], pair["world"], pair["total"]) != (2, 2, 3.0):
        raise BootstrapError(
            f"two ranks under {mpirun} do not see each other (world of Horovod: {pair['size']}, of mpi4py: {pair['world']}): "
            f"they were built for another MPI; {_REBUILD}"
        )
    return f"Horovod {alone['version']} and mpi4py share {libraries[0]}; an allreduce of two ranks gave the right sum"


def _answer(doing: str, probe: Probe) -> Mapping[str, Any]:
    if probe.answer is None:
        raise BootstrapError(f"{doing} failed: {probe.complaint}")
    return probe.answer

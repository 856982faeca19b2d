"""After the set-up: does it really train? One process, then two ranks; mpi4py and Horovod must be in one and the same MPI."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.probes import Probe, run_probe, run_smoke
from launcher.bootstrap.toolchain import Mpi

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

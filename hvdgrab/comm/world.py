"""Which ranks there are, and whether Horovod, MPI and the launcher agree about them.

If they disagree, every process may train alone without any error.  Hence everything is compared at the start.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdgrab.comm.communicator import Communicator, SerialCommunicator
from hvdgrab.comm.link import ServedCommunicator
from hvdgrab.comm.split import split_off
from hvdgrab.config import CommunicationConfig
from hvdgrab.errors import WorldError

_LAUNCHER_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")


@dataclass(frozen=True)
class World:
    """This process's place: ``rank`` of ``size``, ``local_rank`` on its node, and whether Horovod runs."""

    rank: int
    size: int
    local_rank: int = 0
    horovod: bool = False


def initialized_horovod() -> Any | None:
    """Return ``horovod.torch`` if the script has imported *and* initialised it, else None.  Never imports it."""
    module = sys.modules.get("horovod.torch")
    if module is None or not hasattr(module, "is_initialized") or not module.is_initialized():
        return None
    return module


def find_world(environment: Mapping[str, str] = os.environ) -> World:
    """Find the world as Horovod sees it, or a single process if Horovod is not used.

    Raises:
        WorldError: the launcher started several processes, but Horovod is not initialised, runs on Gloo, is elastic, or counts
            other ranks.
    """
    expected = launched_size(environment) - (0 if split_off() is None else 1)
    hvd = initialized_horovod()
    if hvd is None:
        if expected > 1:
            raise WorldError(
                f"the launcher started {expected} processes, but Horovod is not initialised in this one: call hvd.init() "
                "before GraBSampler, or pass rank= and size= yourself"
            )
        return World(rank=0, size=1)
    if environment.get("HOROVOD_ELASTIC") == "1":
        raise WorldError(
            "elastic Horovod is not supported: the units of every rank depend on the number of ranks. Start a fixed world"
        )
    if hvd.size() > 1 and not hvd.mpi_enabled():
        raise WorldError(
            "Horovod runs on Gloo, hvdgrab talks over MPI: start with `horovodrun --mpi …` or mpirun, on a Horovod built with MPI"
        )
    if expected > 1 and hvd.size() != expected:
        raise WorldError(
            f"the launcher started {expected} processes, but Horovod counts {hvd.size()}: each process would train alone. "
            "Launcher and Horovod use different MPI libraries, or srun offers another PMI (try `srun --mpi=pmix`); "
            "`hvdgrab-launch doctor` shows both"
        )
    return World(hvd.rank(), hvd.size(), hvd.local_rank(), horovod=True)


def launched_size(environment: Mapping[str, str]) -> int:
    """The number of processes of this job by the launcher's variables; 1 if there are none."""
    for name in _LAUNCHER_SIZES:
        if environment.get(name, "").isdigit():
            return int(environment[name])
    # SLURM_NTASKS is also set in a shell on an allocation, unlike the size of a step
    if environment.get("SLURM_STEP_NUM_TASKS", "").isdigit() and environment.get("SLURM_LAUNCH_NODE_IPADDR"):
        return int(environment["SLURM_STEP_NUM_TASKS"])
    return 1


def connector(world: World, settings: CommunicationConfig | None = None) -> Callable[[], Communicator]:
    """Check what this process can check alone, and return what makes the communicator in its communication thread.

    Args:
        world: the ranks.
        settings: how payloads travel.

    Raises:
        WorldError: mpi4py is missing, MPI offers no THREAD_MULTIPLE, counts other ranks, or two MPI libraries are loaded.
    """
    split = split_off()
    if world.size == 1:
        return SerialCommunicator if split is None else lambda: ServedCommunicator(SerialCommunicator(), split.link())
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise WorldError(
            f"rank {world.rank}: {world.size} ranks exchange their gradients over mpi4py, which cannot be imported ({error}): "
            "install it against the MPI that Horovod uses (`MPICC=mpicc pip install --no-binary=mpi4py mpi4py`)"
        ) from None
    check_mpi(MPI, world)
    size = settings.node_size if settings is not None else None
    if size is not None and size > world.size:
        raise WorldError(f"communication.node_size is {size}, but there are {world.size} ranks in all")

    def connect() -> Communicator:
        from hvdgrab.comm.connect import open_communicator

        ranks = open_communicator(MPI.COMM_WORLD if split is None else split.training, settings or CommunicationConfig())
        return ranks if split is None else ServedCommunicator(ranks, split.link())

    return connect


def check_mpi(mpi: Any, world: World) -> None:
    """Raise `WorldError` if MPI's view differs from Horovod's; ``mpi`` is the module ``mpi4py.MPI``."""
    check_one_library(f"rank {world.rank}")
    split = split_off()
    ranks = mpi.COMM_WORLD if split is None else split.training
    size, rank = ranks.Get_size(), ranks.Get_rank()
    if (size, rank) != (world.size, world.rank):
        raise WorldError(
            f"Horovod says rank {world.rank} of {world.size}, mpi4py says rank {rank} of {size}: they use different MPI "
            "libraries or Horovod was given a part of the world. `hvdgrab-launch doctor` shows what each is built with"
        )
    if mpi.Query_thread() < mpi.THREAD_MULTIPLE:
        raise WorldError(
            f"rank {world.rank}: MPI was started without MPI_THREAD_MULTIPLE, which Horovod's and hvdgrab's threads need: call "
            "hvd.init() before anything else imports mpi4py, and do not lower mpi4py.rc.thread_level"
        )


def check_one_library(who: str) -> None:
    """Raise `WorldError` if two MPI libraries are loaded in this process."""
    libraries = loaded_mpi_libraries()
    if len(libraries) > 1:
        raise WorldError(
            f"{who}: two MPI libraries are loaded, {' and '.join(libraries)}: mpi4py and Horovod must be built against the same "
            "one"
        )


def loaded_mpi_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Find the distinct MPI libraries loaded in this process, sorted by path; empty if the system does not tell."""
    try:
        text = maps.read_text()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1].strip() for line in text.splitlines() if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(("libmpi.so", "libmpi-", "libmpich.so")))


def end_job(error: BaseException | None) -> None:
    """Print ``error``, then end every rank of the job at once, with exit code 1.

    For a rank that cannot go on while others wait for it.  In a single process, or if MPI is not running, this only prints.
    """
    if error is not None:
        traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    if "mpi4py.MPI" in sys.modules:
        mpi = sys.modules["mpi4py.MPI"]
        if mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
            mpi.COMM_WORLD.Abort(1)

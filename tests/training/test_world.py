"""Processes that do not form the world that the script expects are refused at the start, with advice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdgrab.comm.communicator import SerialCommunicator
from hvdgrab.comm.world import World, check_mpi, connector, find_world, launched_size, loaded_mpi_libraries
from hvdgrab.errors import WorldError
from tests.training.conftest import ROOT, Ended, environment

LAUNCHED = {"OMPI_COMM_WORLD_SIZE": "2"}


def horovod(monkeypatch: pytest.MonkeyPatch, rank: int = 0, size: int = 2, initialized: bool = True, mpi: bool = True) -> None:
    """A stand-in for ``horovod.torch``."""
    fake = SimpleNamespace(
        is_initialized=lambda: initialized, rank=lambda: rank, size=lambda: size, local_rank=lambda: rank, mpi_enabled=lambda: mpi
    )
    monkeypatch.setitem(sys.modules, "horovod.torch", fake)


@pytest.fixture(autouse=True)
def no_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "horovod.torch", raising=False)


def test_a_plain_process_is_alone() -> None:
    assert find_world({}) == World(0, 1)


def test_horovod_gives_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod(monkeypatch, rank=1)
    assert find_world(LAUNCHED) == World(1, 2, local_rank=1, horovod=True)
    assert find_world({}) == World(1, 2, local_rank=1, horovod=True)


def test_one_process_of_several_without_horovod_is_refused() -> None:
    with pytest.raises(WorldError, match=r"2 processes.*hvd\.init\(\)"):
        find_world(LAUNCHED)


def test_horovod_that_is_imported_but_not_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod(monkeypatch, initialized=False)
    assert find_world({}) == World(0, 1)
    with pytest.raises(WorldError, match=r"hvd\.init\(\)"):
        find_world(LAUNCHED)


def test_every_process_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two MPI libraries or a PMI that does not fit: Horovod counts one rank in each process."""
    horovod(monkeypatch, size=1)
    with pytest.raises(WorldError, match=r"2 processes, but Horovod counts 1.*doctor"):
        find_world(LAUNCHED)


def test_gloo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod(monkeypatch, mpi=False)
    with pytest.raises(WorldError, match=r"Gloo.*horovodrun --mpi"):
        find_world({})
    horovod(monkeypatch, mpi=False, size=1)  # alone it does not matter
    assert find_world({}).size == 1


def test_elastic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    horovod(monkeypatch)
    with pytest.raises(WorldError, match="elastic"):
        find_world({"HOROVOD_ELASTIC": "1"})


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 4),
        ({"PMI_SIZE": "3"}, 3),
        ({"MV2_COMM_WORLD_SIZE": "5"}, 5),
        ({"OMPI_COMM_WORLD_SIZE": ""}, 1),
        ({"OMPI_COMM_WORLD_SIZE": "many"}, 1),
        ({"SLURM_NTASKS": "8"}, 1),  # a shell on an allocation
        ({"SLURM_STEP_NUM_TASKS": "8", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, 8),
    ],
)
def test_what_the_launcher_says(variables: dict[str, str], size: int) -> None:
    assert launched_size(variables) == size


def mpi(rank: int = 0, size: int = 2, thread: int = 3) -> Any:
    world = SimpleNamespace(Get_size=lambda: size, Get_rank=lambda: rank)
    return SimpleNamespace(COMM_WORLD=world, THREAD_MULTIPLE=3, Query_thread=lambda: thread)


@pytest.fixture
def one_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdgrab.comm.world.loaded_mpi_libraries", lambda: ["/lib/libmpi.so.40"])


@pytest.mark.usefixtures("one_library")
def test_mpi_that_agrees() -> None:
    check_mpi(mpi(rank=1), World(1, 2))


@pytest.mark.usefixtures("one_library")
@pytest.mark.parametrize("other", [mpi(size=1), mpi(rank=1), mpi(size=4)])
def test_mpi_that_counts_other_ranks(other: Any) -> None:
    with pytest.raises(WorldError, match=r"Horovod says rank 0 of 2, mpi4py says"):
        check_mpi(other, World(0, 2))


@pytest.mark.usefixtures("one_library")
@pytest.mark.parametrize("thread", [0, 1, 2])
def test_less_than_thread_multiple(thread: int) -> None:
    with pytest.raises(WorldError, match=r"MPI_THREAD_MULTIPLE.*hvd\.init\(\)"):
        check_mpi(mpi(thread=thread), World(0, 2))


def test_two_mpi_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    lines = [
        "7f00-7f01 r--p 00000000 08:01 11 /opt/a/lib/libmpi.so.40.30.8",
        "7f02-7f03 r-xp 00000000 08:01 11 /opt/a/lib/libmpi.so.40.30.8",
        "7f04-7f05 r-xp 00000000 08:01 12 /opt/b/lib/libmpich.so.12",
        "7f06-7f07 r-xp 00000000 08:01 13 /opt/b/lib/libmpi_cxx.so.40",
        "7f08-7f09 rw-p 00000000 00:00 0 [heap]",
    ]
    maps.write_text("\n".join(lines))
    found = loaded_mpi_libraries(maps)
    assert found == ["/opt/a/lib/libmpi.so.40.30.8", "/opt/b/lib/libmpich.so.12"]
    assert loaded_mpi_libraries(tmp_path / "nothing") == []
    monkeypatch.setattr("hvdgrab.comm.world.loaded_mpi_libraries", lambda: found)
    with pytest.raises(WorldError, match=r"/opt/a/lib/libmpi\.so\.40\.30\.8 and /opt/b/lib/libmpich\.so\.12"):
        check_mpi(mpi(), World(0, 2))


def test_one_rank_needs_no_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert isinstance(connector(World(0, 1))(), SerialCommunicator)


def test_several_ranks_without_mpi4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(WorldError, match=r"mpi4py, which cannot be imported.*pip install"):
        connector(World(0, 2))


SCRIPT = """
import sys
if "horovod" in sys.argv:
    import horovod.torch as hvd
    hvd.init()
import torch
from hvdgrab import GraBSampler
GraBSampler(torch.utils.data.TensorDataset(torch.zeros(8, 1)), 2)
print("TRAINS ALONE")
"""


@pytest.mark.parametrize("what", ["horovod", "plain"])
def test_two_processes_without_a_launcher(real_ranks: Callable[..., Ended], what: str, tmp_path: Path) -> None:
    """OMPI_COMM_WORLD_SIZE says 2, but no mpirun of the MPI in use started them: each would train alone."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    pair = [
        subprocess.Popen(
            [sys.executable, str(script), what], env=environment(OMPI_COMM_WORLD_SIZE="2"), cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in pair]
    for process, output in zip(pair, outputs, strict=True):
        assert process.returncode != 0, output
        assert "TRAINS ALONE" not in output
        assert "WorldError" in output, output

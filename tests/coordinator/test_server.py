from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hvdgrab.comm.simulated import run_ranks
from hvdgrab.comm.split import Split, choose_server
from hvdgrab.comm.world import find_world
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator import served
from hvdgrab.coordinator.wire import pack_signs, unpack_signs
from hvdgrab.errors import ConsistencyError, WorldError
from tests.coordinator.simulate import Rank, simulate
from tests.coordinator.test_session import random_gradients
from tests.training.conftest import Ended, launch, need_real_ranks

TRAINS, SERVES, ASKS = 0, 1, 2


@pytest.mark.parametrize(
    ("roles", "server"),
    [([TRAINS], None), ([TRAINS] * 4, None), ([ASKS] * 3, 2), ([ASKS, SERVES, ASKS], 1), ([SERVES, ASKS], 0)],
)
def test_who_serves(roles, server):
    assert choose_server(roles) == server


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ([ASKS, SERVES, SERVES], "processes 1, 2 were all started as servers: a job has one"),
        ([SERVES], "start one more than there are training ranks"),
        ([ASKS], "start one more than there are training ranks"),
        ([TRAINS, TRAINS, SERVES], "process 2 was started as a server, but not every training process has coordinator 'server'"),
        ([ASKS, TRAINS, ASKS], "some processes have coordinator 'server' in their settings, others do not"),
    ],
)
def test_worlds_that_cannot_serve_are_refused(roles, words):
    with pytest.raises(WorldError, match=words):
        choose_server(roles)


def test_horovod_counts_the_ranks_without_the_server(monkeypatch):
    fake = SimpleNamespace(
        is_initialized=lambda: True, rank=lambda: 1, size=lambda: 2, local_rank=lambda: 1, mpi_enabled=lambda: True
    )
    monkeypatch.setitem(sys.modules, "horovod.torch", fake)
    with pytest.raises(WorldError, match="the launcher started 3 processes, but Horovod counts 2"):
        find_world({"OMPI_COMM_WORLD_SIZE": "3"})
    monkeypatch.setattr("hvdgrab.comm.split._split", Split(None, None, serves=False))
    assert find_world({"OMPI_COMM_WORLD_SIZE": "3"}).size == 2
    with pytest.raises(WorldError, match="the launcher started 3 processes, but Horovod counts 2"):
        find_world({"OMPI_COMM_WORLD_SIZE": "4"})


def test_a_job_without_a_server_is_told_how_to_start_one():
    def work(communicator: Any) -> None:
        Rank(communicator, GraBConfig(coordinator="server"), random_gradients(1, 4)[0]).epoch()

    with pytest.raises(WorldError, match=r"call hvdgrab.init\(\) instead of hvd.init\(\).*python -m hvdgrab.server"):
        run_ranks(2, work)


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize("shape", [(1, 0), (1, 1), (3, 5), (2, 8), (7, 9)])
def test_signs_come_back_as_they_were(shape, unseen):
    random = np.random.default_rng(0)
    signs = random.choice([-1, 1], shape).astype(np.int8)
    if unseen and signs.size:
        signs.flat[0] = 0
    dropped = random.integers(0, 2**40, shape[0])
    body = pack_signs(signs, dropped)
    assert body.size == 8 * shape[0] + (1 + (unseen and signs.size > 0)) * -(-signs.size // 8)
    received, drops = unpack_signs(body, shape)
    assert (received == signs).all()
    assert (drops == dropped).all()


def test_a_server_of_another_version_says_so(monkeypatch):
    opened = served.Service._open

    def open_with_another_version(self: served.Service, greeting: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:  # when all ranks have said which version they have
            patch.setattr(served, "__version__", "9.9")
            opened(self, greeting)

    monkeypatch.setattr(served.Service, "_open", open_with_another_version)
    with pytest.raises(WorldError, match="the server cannot balance for these ranks: it has hvdgrab 9.9"):
        simulate(random_gradients(2, 6), lambda rank: [rank.epoch(), rank.epoch()], coordinator="server")


@pytest.mark.parametrize("coordinator", ["designated", "replicated", "sharded", "server"])
def test_ranks_at_different_places_are_named(coordinator):
    def work(rank: Rank) -> None:
        rank.epoch(stop_after=4 if rank.communicator.rank == 1 else None)
        rank.epoch()

    words = "not at the same place: rank 0 is in epoch 0 after unit 6; rank 1 ended epoch 0 after unit 4"
    with pytest.raises(ConsistencyError, match=words):
        simulate(random_gradients(2, 6), work, pairs_per_message=1, coordinator=coordinator)


def test_a_server_goes_on_for_the_next_session():
    """Another optimizer over other gradients, in the same processes."""

    def work(rank: Rank) -> list[list[int]]:
        first = [rank.epoch(), rank.epoch()]
        rank.session.close()
        again = Rank(rank.communicator, rank.config, rank.gradients)
        second = [again.epoch(), again.epoch()]
        again.session.close()
        assert first == second
        return second

    simulate(random_gradients(3, 8), work, coordinator="server")


def run(how: str, directory: Path, *more: str) -> tuple[Ended, float]:
    need_real_ranks()
    settings = json.dumps({"coordinator": "server"})
    ended = launch(3, "-m", "tests.coordinator.server_job", how, str(directory), *more, timeout=240.0, HVDGRAB_GRAB=settings)
    over = time.time()
    assert not ended.timed_out, ended.output
    marks = [float(path.read_text()) for path in directory.glob("end-*")]
    return ended, over - (marks[0] if marks else over)


@pytest.mark.soak
def test_a_job_with_a_server_whose_server_dies_ends_and_goes_on_from_its_checkpoint(tmp_path):
    folders = {how: tmp_path / how for how in ("well", "die")}
    for folder in folders.values():
        folder.mkdir()
    well, _ = run("well", folders["well"])
    assert well.code == 0, well.output
    assert "the server balances 57 gradient values as none" in well.output
    died, seconds = run("die", folders["die"])
    assert died.code != 0
    assert seconds < 20, died.output
    assert re.search(r"rank 2|PID|signal 9", died.output), "mpirun names the process that was killed"
    resumed, _ = run("resume", folders["die"])
    assert resumed.code == 0, resumed.output
    for rank in range(2):
        whole, weights = json.loads((folders["well"] / f"well-{rank}.json").read_text())
        rest, same = json.loads((folders["die"] / f"resume-{rank}.json").read_text())
        assert rest == whole[-len(rest) :]
        assert rest[0][:2] == [1, 5]
        assert same == weights


def test_a_rank_that_dies_ends_a_job_with_a_server(tmp_path):
    ended, seconds = run("abort", tmp_path)
    assert ended.code != 0
    assert seconds < 20, ended.output


@pytest.mark.parametrize("coordinator", ["sharded", pytest.param("replicated", marks=pytest.mark.soak)])
@pytest.mark.parametrize("how", ["kill", pytest.param("raise", marks=pytest.mark.soak)])
def test_a_rank_that_dies_ends_the_job(coordinator, how, tmp_path):
    """For the designated coordinator see tests/training/test_ending.py."""
    need_real_ranks()
    settings = json.dumps({"coordinator": coordinator})
    ended = launch(2, "-m", "tests.training.endings", how, str(tmp_path), timeout=200.0, HVDGRAB_GRAB=settings)
    over = time.time()
    assert not ended.timed_out, ended.output
    assert ended.code != 0
    assert over - float((tmp_path / "end-1").read_text()) < 20, ended.output
    assert not list(tmp_path.glob("done-*"))

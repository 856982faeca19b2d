"""How a job of real ranks ends: well without close(), and in seconds where a rank fails."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.conftest import Ended

Start = Callable[..., Ended]


def run(real_ranks: Start, size: int, how: str, directory: Path, timeout: float = 150.0, **extra: str) -> tuple[Ended, float]:
    """The job, and the seconds from the moment the odd rank left to the end of all."""
    ended = real_ranks(size, "-m", "tests.training.endings", how, str(directory), timeout=timeout, **extra)
    over = time.time()
    assert not ended.timed_out, ended.output
    marks = [float(path.read_text()) for path in directory.glob("end-*")]
    return ended, over - (marks[0] if marks else over)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_a_rank_that_raises_ends_the_job_in_seconds(real_ranks: Start, size: int, tmp_path: Path) -> None:
    ended, seconds = run(real_ranks, size, "raise", tmp_path)
    assert ended.code != 0
    assert seconds < 15, ended.output
    first = ended.output.index("Traceback")
    assert "LookupError: the data of this rank are gone" in ended.output[first:]
    assert ended.output.count("Traceback") == 1 or ended.output.index("LookupError") < ended.output.index("Traceback", first + 1)
    assert not list(tmp_path.glob("done-*"))


def test_a_rank_that_exits_does_not_hang_the_job(real_ranks: Start, tmp_path: Path) -> None:
    ended, seconds = run(real_ranks, 2, "exit", tmp_path)
    assert ended.code != 0
    assert seconds < 25, ended.output
    assert not list(tmp_path.glob("done-*"))


def test_a_rank_that_leaves_the_loop_alone_is_named(real_ranks: Start, tmp_path: Path) -> None:
    """The others wait in Horovod for gradients that never come: what ends the job is our own comparison of places."""
    ended, seconds = run(real_ranks, 2, "leave", tmp_path)
    assert ended.code != 0
    assert "the ranks are not at the same place" in ended.output
    assert "rank 1" in ended.output
    assert seconds < 25, ended.output


def test_a_rank_that_dies_ends_the_job(real_ranks: Start, tmp_path: Path) -> None:
    ended, seconds = run(real_ranks, 2, "kill", tmp_path)
    assert ended.code != 0
    assert seconds < 15, ended.output


@pytest.mark.parametrize("how", [pytest.param("well", marks=pytest.mark.soak), "late"])
def test_the_last_epoch_has_its_line_without_close(real_ranks: Start, how: str, tmp_path: Path) -> None:
    """Also where the other ranks are long through: the first one that leaves ends MPI for all, with Horovod."""
    ended, _ = run(real_ranks, 2, how, tmp_path, HVDGRAB_JOB_DIR=str(tmp_path))
    assert ended.code == 0, ended.output
    assert len(list(tmp_path.glob("done-*"))) == 2
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert all(line["train_loss"] > 0 for line in lines)
    assert "Traceback" not in ended.output


def test_horovod_shut_down_before_close_loses_a_line_at_most(real_ranks: Start, tmp_path: Path) -> None:
    """MPI is gone with Horovod: no crash, and the message says what to do."""
    ended, _ = run(real_ranks, 2, "shutdown", tmp_path, HVDGRAB_JOB_DIR=str(tmp_path))
    assert ended.code == 0, ended.output
    assert "Segmentation" not in ended.output
    assert "close()" in ended.output
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines][:2] == [0, 1]

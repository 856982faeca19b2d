from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hvdgrab import mark_finished
from hvdgrab.training.job import Progress


def test_progress_is_shown_once_a_second_at_most(tmp_path, monkeypatch):
    sign = tmp_path / "progress"
    progress = Progress({"HVDGRAB_PROGRESS": str(sign)})
    now = [100.0]
    monkeypatch.setattr("hvdgrab.training.job.time.monotonic", lambda: now[0])
    progress.moved()
    os.utime(sign, (1, 1))
    now[0] = 100.9
    progress.moved()
    assert sign.stat().st_mtime == 1
    now[0] = 101.1
    progress.moved()
    assert sign.stat().st_mtime > 1


@pytest.mark.parametrize("place", ["gone/progress", ""])
def test_progress_that_cannot_be_shown_ends_nothing(tmp_path, place):
    Progress({"HVDGRAB_PROGRESS": str(tmp_path / place) if place else ""}).moved()
    assert list(tmp_path.iterdir()) == []


def test_the_end_is_marked_in_one_step(tmp_path):
    mark_finished({"HVDGRAB_FINISHED": str(tmp_path / "finished.json")})
    assert [path.name for path in tmp_path.iterdir()] == ["finished.json"]
    assert json.loads((tmp_path / "finished.json").read_text())["time"] > 0


def test_nothing_is_marked_without_a_launcher(tmp_path, monkeypatch):
    monkeypatch.delenv("HVDGRAB_FINISHED", raising=False)
    mark_finished()


def test_a_training_shows_its_progress(tmp_path):
    code = (
        "import torch; from torch.utils.data import TensorDataset; from hvdgrab import GraBOptimizer, GraBSampler\n"
        "model = torch.nn.Linear(2, 1)\n"
        "sampler = GraBSampler(TensorDataset(torch.zeros(8, 2)), batch_size=4)\n"
        "optimizer = GraBOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), sampler, model)\n"
        "for batch in sampler: model(torch.ones(4, 2)).sum().backward(); optimizer.step()\n"
    )
    environment = {**os.environ, "HVDGRAB_PROGRESS": str(tmp_path / "progress")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=100)
    assert (tmp_path / "progress").exists()

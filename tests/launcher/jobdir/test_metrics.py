from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.host.text import duration
from launcher.jobdir.metrics import MetricsFollower


def line(**values: Any) -> str:
    return json.dumps({"epoch": 0, "epochs": 10, "train_loss": 0.5, "herding_l2_vs_random": 0.8, "seconds": 2.0, **values}) + "\n"


def test_epochs_appear_as_the_file_grows(tmp_path: Path) -> None:
    follower = MetricsFollower(tmp_path / "metrics.jsonl")
    assert follower.poll() == []
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line() + line(epoch=1)[:20])
        file.flush()
        assert [epoch.number for epoch in follower.poll()] == [1]
        file.write(line(epoch=1)[20:])
        file.flush()
        assert [epoch.number for epoch in follower.poll()] == [2]
    assert follower.poll() == []
    left = follower.time_left()
    assert left is not None
    assert 15.0 < left <= 16.0
    assert follower.latest is not None
    assert follower.latest.text(75.0) == "epoch 2/10  loss 0.5000  bound 0.80 of random  1 min 15 s left"
    assert follower.latest.done == 0.2


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', '{"epoch": null}', '{"epoch": "1"}', '{"epoch": true}', "\0"])
def test_lines_that_are_no_epoch_are_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "m").write_text(text + "\n" + line(epoch=4))
    assert [epoch.number for epoch in MetricsFollower(tmp_path / "m").poll()] == [5]


def test_unknown_values(tmp_path: Path) -> None:
    (tmp_path / "m").write_text(line(train_loss=None, herding_l2_vs_random=float("nan"), epochs=None, seconds="x"))
    follower = MetricsFollower(tmp_path / "m")
    (epoch,) = follower.poll()
    assert epoch.text(follower.time_left()) == "epoch 1  loss unknown"
    assert epoch.done is None


@pytest.mark.parametrize(("seconds", "text"), [(59, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text

"""The epoch record, its file and the means of logged scalars."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdgrab.errors import UsageError
from hvdgrab.report import metrics
from hvdgrab.report.metrics import EpochRecord, ScalarMean

FULL = EpochRecord(
    epoch=3, order="cd-grab", train_loss=0.5, herding_l2=2.0, herding_linf=None, herding_l2_vs_random=0.8, bytes_sent=4000,
    bytes_dense=4000, pairs=10, pairs_dropped=0, step_ms=1.5, ordering_ms=0.1, order_hash="ab12", epochs=30, ranks=4, units=5,
    seconds=0.7, time=1.7e9, extra={"accuracy": 0.9},
)


def test_a_record_survives_the_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert metrics.append(path, FULL)
    assert metrics.append(path, EpochRecord(epoch=4, order="rr"))
    assert metrics.read(path) == ([FULL, EpochRecord(epoch=4, order="rr")], [])


def test_the_columns_of_the_design_are_there() -> None:
    line = json.loads(FULL.to_json())
    named = "epoch order train_loss herding_l2 herding_linf herding_l2_vs_random bytes_sent bytes_dense pairs pairs_dropped"
    assert {*named.split(), "step_ms", "ordering_ms", "order_hash"} <= set(line)
    assert line["accuracy"] == 0.9
    assert "extra" not in line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan"), torch.tensor(math.inf)])
def test_what_is_not_finite_becomes_null(value: float) -> None:
    line = dataclasses.replace(FULL, train_loss=value, extra={"accuracy": value}).to_json()
    assert json.loads(line)["train_loss"] is None
    assert json.loads(line)["accuracy"] is None
    assert EpochRecord.from_json(line).train_loss is None


def test_numpy_numbers_are_written_as_numbers() -> None:
    line = dataclasses.replace(FULL, pairs=np.int64(7), train_loss=np.float32(0.25)).to_json()  # type: ignore[arg-type]
    assert (json.loads(line)["pairs"], json.loads(line)["train_loss"]) == (7, 0.25)


@pytest.mark.parametrize("cut", [1, 5, 40, 100])
def test_a_torn_last_line_is_passed_over_and_never_swallows_the_next(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics.append(path, FULL)
    metrics.append(path, FULL)
    path.write_bytes(path.read_bytes()[:-cut])
    before = metrics.read(path)
    assert before.problems == []
    assert len(before.records) == (2 if cut == 1 else 1)  # cut == 1 tears off the newline alone: the record is whole
    later = dataclasses.replace(FULL, epoch=9)
    assert metrics.append(path, later)
    after = metrics.read(path)
    assert after.records[-1] == later
    assert len(after.records) == len(before.records) + 1
    assert [problem.split(":")[0] for problem in after.problems] == ([] if cut == 1 else ["metrics.jsonl, line 2"])


@pytest.mark.parametrize(
    ("bad", "reason"),
    [("{", "line 2"), ("[]", "integer 'epoch'"), ('{"epoch": "1", "order": "rr"}', "integer 'epoch'"),
     ('{"epoch": 1, "order": "rr", "train_loss": "low", "pairs": true}', "pairs, train_loss"), ("\udc80", "line 2")],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, bad: str, reason: str) -> None:
    path = tmp_path / "metrics.jsonl"
    good = FULL.to_json()
    path.write_bytes(f"{good}\n{bad}\n{good}\n".encode(errors="surrogateescape"))
    found = metrics.read(path)
    assert len(found.records) == 2
    assert len(found.problems) == 1
    assert found.problems[0].startswith("metrics.jsonl, line 2: ")
    assert reason in found.problems[0]


def test_an_absent_file_has_no_epochs(tmp_path: Path) -> None:
    assert metrics.read(tmp_path / "none.jsonl") == ([], [])


def test_a_full_disk_gives_one_warning_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hvdgrab.report.metrics"):
        assert [metrics.append(Path("/dev/full"), FULL) for _ in range(3)] == [False] * 3
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "No space left" in caplog.records[0].message
    assert "the training goes on" in caplog.records[0].message


def test_a_deleted_directory_gives_one_warning_and_a_restored_one_is_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "job" / "metrics.jsonl"
    with caplog.at_level(logging.WARNING, logger="hvdgrab.report.metrics"):
        assert not metrics.append(path, FULL)
        assert not metrics.append(path, FULL)
        path.parent.mkdir()
        assert metrics.append(path, FULL)
    assert len(caplog.records) == 1
    assert len(metrics.read(path).records) == 1


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = metrics.os.write

    def spy(descriptor: int, data: bytes) -> int:
        writes.append(data)
        return real(descriptor, data)

    monkeypatch.setattr(metrics.os, "write", spy)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"torn")
    metrics.append(path, FULL)
    assert writes == [b"\n" + FULL.to_json().encode() + b"\n"]


def test_a_line_written_in_part_is_a_failure_that_the_next_line_repairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    real = metrics.os.write
    with monkeypatch.context() as patched:
        patched.setattr(metrics.os, "write", lambda descriptor, data: real(descriptor, data[:10]))
        assert not metrics.append(path, FULL)
    assert metrics.append(path, FULL)
    assert metrics.read(path).records == [FULL]


def test_of_an_epoch_that_ran_twice_the_later_line_counts() -> None:
    first, second = (EpochRecord(epoch=1, order="rr", train_loss=loss) for loss in (0.5, 0.4))
    start = EpochRecord(epoch=0, order="rr")
    assert metrics.latest([start, first, second]) == [start, second]


def test_means_are_over_all_calls_of_all_ranks() -> None:
    one, two = ScalarMean(), ScalarMean()
    one.add(loss=1.0)
    one.add(loss=torch.tensor(2.0, requires_grad=True), accuracy=np.float32(0.5))
    two.add(loss=torch.tensor([6.0]))
    assert one.totals() == {"loss": (3.0, 2), "accuracy": (0.5, 1)}
    assert ScalarMean.merge([one.totals(), two.totals(), ScalarMean().totals()]) == {"loss": 3.0, "accuracy": 0.5}
    one.clear()
    assert one.totals() == {}


@given(st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), min_size=1, max_size=4))
def test_merging_equals_the_plain_mean(ranks: list[list[float]]) -> None:
    means = [ScalarMean() for _ in ranks]
    for mean, values in zip(means, ranks, strict=True):
        for value in values:
            mean.add(loss=value)
    flat = [value for values in ranks for value in values]
    merged = ScalarMean.merge(mean.totals() for mean in means)
    assert merged == ({"loss": pytest.approx(sum(flat) / len(flat), abs=1e-6)} if flat else {})


def test_a_logged_tensor_is_not_kept_by_reference() -> None:
    mean, loss = ScalarMean(), torch.tensor(1.0, dtype=torch.float64)
    mean.add(loss=loss)
    loss.fill_(7.0)
    assert mean.totals() == {"loss": (1.0, 1)}


@pytest.mark.parametrize("scalars", [{"epoch": 1}, {"train_loss": 1.0}, {"extra": 1.0}, {"loss": torch.ones(2)}, {"loss": "low"}])
def test_what_cannot_be_logged_is_refused_by_name(scalars: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(scalars))):
        ScalarMean().add(**scalars)

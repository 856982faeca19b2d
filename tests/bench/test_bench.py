"""The benchmarks: what they compute from records, the command line, and one real pair of runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hvdgrab.bench import __main__ as cli
from hvdgrab.bench import convergence, machine, overhead, runs
from hvdgrab.bench.convergence import Curve
from hvdgrab.bench.runs import BenchError, Site
from hvdgrab.report.metrics import EpochRecord


def _records(order: str, seconds: list[float], loss: float | None = 0.5, dropped: int = 0) -> list[EpochRecord]:
    return [
        EpochRecord(epoch, order, train_loss=loss, units=10, pairs_dropped=dropped, extra={"train_seconds": value})
        for epoch, value in enumerate(seconds)
    ]


def test_step_times_leave_the_first_epoch_out() -> None:
    assert overhead.step_ms(_records("rr", [9.0, 0.1, 0.3, 0.2])) == pytest.approx(20.0)


def test_a_pair_of_runs_becomes_a_row() -> None:
    row = overhead.compare(_records("plain-horovod", [9, 0.1]), _records("cd-grab", [9, 0.13]), order="cd-grab", epochs=2)
    assert (row["plain_ms"], row["cd-grab_ms"], row["ratio"]) == (pytest.approx(10), pytest.approx(13), pytest.approx(1.3))
    assert row["wrong"] == 0


@pytest.mark.parametrize(
    "ordered",
    [
        _records("rr", [1, 1]),
        _records("cd-grab", [1]),
        _records("cd-grab", [1, 1], loss=None),
        _records("cd-grab", [1, 1], dropped=2),
        _records("cd-grab", [1, 1], loss=5.0),
    ],
    ids=["another order", "an epoch is missing", "no finite loss", "pairs dropped", "losses far apart"],
)
def test_what_is_wrong_is_counted(ordered: list[EpochRecord]) -> None:
    assert overhead.compare(_records("plain-horovod", [1, 1]), ordered, order="cd-grab", epochs=2)["wrong"] != 0


def test_medians_close_the_table() -> None:
    rows: list[overhead.Row] = [{"pair": pair, "ratio": ratio, "wrong": 1} for pair, ratio in enumerate((1.5, 1.1, 1.2))]
    assert overhead.summary(rows) == {"pair": "median", "ratio": 1.2, "wrong": 3}


def _curve(order: str, seed: int, losses: list[float | None]) -> Curve:
    return Curve(order, seed, losses, losses, [1.0, 0.8, 0.6], {"accuracy": [0.1, 0.2, 0.3]}, seconds=2.0)


def test_epochs_to_reach_counts_from_one() -> None:
    assert convergence.epochs_to_reach([3.0, None, 1.0, 0.5], 1.0) == 3
    assert convergence.epochs_to_reach([3.0], 1.0) is None
    assert convergence.epochs_to_reach([3.0], None) is None


def test_each_seed_is_compared_with_its_own_reference() -> None:
    curves = [
        _curve("rr", 0, [3.0, 2.0, 1.0]), _curve("cd-grab", 0, [3.0, 1.0, 0.9]),
        _curve("rr", 1, [3.0, 2.0, 1.5]), _curve("cd-grab", 1, [3.0, 1.2, 1.1]),
    ]  # fmt: skip
    rows = {str(row["order"]): row for row in convergence.rows(curves)}
    assert (rows["rr"]["epochs_to_rr"], rows["cd-grab"]["epochs_to_rr"]) == (3.0, 2.0)
    assert rows["cd-grab"]["full_loss"] == pytest.approx(1.0)
    assert rows["cd-grab"]["bound"] == pytest.approx(0.7)
    assert rows["cd-grab"]["accuracy"] == pytest.approx(0.3)


def test_an_order_that_never_gets_there_says_so() -> None:
    rows = convergence.rows([_curve("rr", 0, [3.0, 2.0, 1.0]), _curve("fixed", 0, [3.0, 2.5, 2.0])])
    assert rows[1]["epochs_to_rr"] is None


def test_curves_are_drawn(tmp_path: Path) -> None:
    convergence.plot([_curve("rr", 0, [3.0, 2.0, None])], tmp_path / "c.png", "digits")
    assert (tmp_path / "c.png").stat().st_size > 5000


def test_tables_are_aligned() -> None:
    lines = machine.table([{"order": "rr", "loss": 0.123456}, {"order": "cd-grab", "loss": None}]).splitlines()
    assert lines == ["  order    loss", "     rr  0.1235", "cd-grab       -"]


def test_the_header_names_versions_and_machine() -> None:
    text = machine.sentence(machine.header())
    assert "torch " in text
    assert " cores" in text


def test_consent_to_root_and_oversubscription_is_passed_on_only_where_given() -> None:
    assert {"--oversubscribe", "--allow-run-as-root"} <= set(Site(2, oversubscribe=True, allow_root=True).command([]))
    assert not {"--oversubscribe", "--allow-run-as-root"} & set(Site(2).command([]))


def test_a_failing_run_shows_its_last_lines() -> None:
    site = Site(1, allow_root=os.geteuid() == 0, timeout=300)
    with pytest.raises(BenchError, match=r"(?s)ended with code .*unrecognized arguments: --nonsense"):
        runs.run(site, "digits", ["--nonsense"])


def test_a_run_that_takes_too_long_is_ended() -> None:
    site = Site(1, allow_root=os.geteuid() == 0, timeout=0.5)
    with pytest.raises(BenchError, match=r"did not end within 0\.5 s"):
        runs.run(site, "digits", [])


@pytest.mark.parametrize(
    "arguments", [["gather", "--sizes", "small"], ["simulate", "--orders", "best"], ["convergence", "digits", "--seeds", "a"]]
)
def test_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


def test_simulate_gives_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--json", "--seeds", "0", "--epochs", "2", "--orders", "rr"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["epoch"] for row in document["results"]] == [1, 2]
    assert document["versions"]["torch"]


def test_a_real_pair_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    consent = ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    small = ["--limit", "120", "--batch-size", "4", "--ranks", "2", "--epochs", "1", "--pairs", "1", "--timeout", "300"]
    assert cli.main(["overhead", "--json", *small, *consent]) == 0
    row, middle = json.loads(capsys.readouterr().out)["results"]
    assert row["wrong"] == 0
    assert row["plain_ms"] > 0
    assert row["ratio"] == middle["ratio"] > 0

"""The compressors' benchmark: bounds from inner products, re-ordering from payloads, and the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hvdgrab.balance import herding_bound
from hvdgrab.balance.reference import coordinated_epoch
from hvdgrab.bench import __main__ as cli
from hvdgrab.bench import compress, gradients
from hvdgrab.bench.compress import SETTINGS, Setting
from hvdgrab.bench.gradients import Gradients
from hvdgrab.compression import compressor_kinds


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few small settings, each timed once."""
    sketches = [Setting("sketch", {"width": 64, "dtype": dtype}) for dtype in ("fp32", "int8")]
    monkeypatch.setattr(compress, "SETTINGS", (Setting("none"), Setting("topk", {"ratio": 0.1, "dtype": "fp16"}), *sketches))
    monkeypatch.setattr(compress, "TIMED", 1)


@pytest.fixture(scope="module")
def stored() -> Gradients:
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(3, 21, 400)) * rng.random(400) + 1).astype(np.float32)
    return Gradients("made up", values, gradients.centred_gram(values.reshape(63, 400)))


def test_bounds_from_inner_products_are_herding_bounds(stored: Gradients) -> None:
    for seed in range(3):
        orders = stored.start(seed)
        assert stored.bound(orders) == pytest.approx(herding_bound(stored.values, orders)[0], rel=1e-5)


def test_inner_products_are_summed_in_parts(stored: Gradients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "COLUMNS", 7)
    rows = stored.values.reshape(63, 400)
    centred = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    assert np.allclose(gradients.centred_gram(rows), centred @ centred.T, atol=1e-4)


def test_dense_payloads_order_as_the_literal_algorithm_does(stored: Gradients, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compress, "BATCH_BYTES", 4 * 400 * 5)
    orders = stored.start()
    found = compress.reorder(stored, Setting("none").build(), orders, None)
    for epoch in range(1, 6):
        orders = coordinated_epoch(stored.values, orders)
        if epoch in found:
            assert found[epoch] == pytest.approx(stored.bound(orders))


def test_rows_of_every_setting(stored: Gradients, tmp_path: Path) -> None:
    rows = compress.rows(stored, starts=2)
    assert [row["compressor"] for row in rows] == [str(setting) for setting in compress.SETTINGS]
    dense = rows[0]
    for row in rows:
        assert row["wrong"] == 0
        assert row["bytes"] == next(make for make in compress.SETTINGS if str(make) == row["compressor"]).build().wire_bytes(400)
        assert float(str(row["compress_ms"])) > 0
        assert float(str(row["inner_error"])) >= float(str(dense["inner_error"])) < 1e-5
    assert 0 < float(str(dense["bound_5"])) < 1
    compress.plot(rows, tmp_path / "bound.png")
    assert (tmp_path / "bound.png").stat().st_size > 5000


def test_values_beyond_the_tolerance_are_counted(stored: Gradients) -> None:
    make = Setting("int8").build()
    make.tolerance = lambda difference: np.zeros(len(difference))  # type: ignore[method-assign]
    assert compress._wrong(make, [stored.difference(stored.start(), 0, 0)]) > 300


def test_the_command_line_on_real_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--examples", "digits", "--ranks", "2", "--units", "6", "--starts", "1", "--floats", "400000"]
    assert cli.main(["compress", "--json", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)["results"]
    assert {row["example"] for row in result["rows"]} == {"digits"}
    assert [row["wrong"] for row in result["throughput"]] == [0, 0]


def test_all_kinds_are_among_the_settings() -> None:
    assert {setting.kind for setting in SETTINGS} == set(compressor_kinds())
    assert all(setting.build().wire_bytes(10**6) > 0 for setting in SETTINGS)
    assert len({str(setting) for setting in SETTINGS}) == len(SETTINGS)

"""The benchmark of the order engine and the random-vector study, at tiny sizes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdgrab.balance import pair_balance
from hvdgrab.balance.reference import Audit
from hvdgrab.bench import __main__ as cli
from hvdgrab.bench import balance, herding
from hvdgrab.bench.balance import Case
from hvdgrab.bench.runs import BenchError


@pytest.fixture(autouse=True)
def _copy_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "COPY", 2**20)


HOST = ["reference", "numba", "torch"]


def test_a_row_for_every_backend_with_everything_it_is_read_with() -> None:
    rows = balance.measure("40x8", HOST, repeats=2)
    assert [row["backend"] for row in rows] == HOST
    for row in rows:
        assert row["wrong"] == 0
        assert row["moved_MiB"] == 40 * 8 * 4 / 2**20
        for name in ("ms", "ms_best", "baseline_ms", "speedup", "speedup_best", "of_copy"):
            value = row[name]
            assert isinstance(value, float)
            assert value > 0


def test_an_epoch_is_balanced_as_it_lies_and_from_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "WINDOW", 64)
    monkeypatch.setattr(balance, "SLICE", 24)
    fp32, int8 = balance.measure("3x7x8", ["numba"], repeats=2)
    assert (fp32["payload"], int8["payload"]) == ("fp32", "int8")
    assert fp32["wrong"] == int8["wrong"] == 0
    assert fp32["baseline_ms"] is None


def test_windows_hold_every_payload_of_the_pool_once_before_any_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "WINDOW", 32)
    case = Case.parse("10x10x8")
    pool = balance._pool(case)
    assert len(pool) == balance.POOL * 4
    windows = list(balance._windows(case, pool, seed=0))
    assert sum(map(len, windows)) == 100
    first = np.concatenate(windows[: balance.POOL])
    assert sorted(map(bytes, first)) == sorted(map(bytes, pool))
    assert len(set(map(bytes, pool))) == len(pool)


def test_what_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(BenchError, match="GPU"):
        balance.measure("4x4x4", ["triton"], repeats=1)


@pytest.mark.parametrize("text", ["4096", "4x0", "ax4", "1x2x3x4", "4x-1"])
def test_cases_that_are_none(text: str) -> None:
    with pytest.raises(ValueError):
        Case.parse(text)
    with pytest.raises(SystemExit):
        cli.main(["balance", "--case", text])


def test_cases() -> None:
    assert (Case.parse("4096x1024").m, str(Case.parse("4096x1024"))) == (4096, "4096x1024")
    assert (Case.parse("8x5x16").m, str(Case.parse("8x5x16"))) == (40, "8x5x16")
    assert balance.backends_of("8x5x16") == ("numba",)
    assert set(balance.CASES) <= set(balance.default_cases())


def _rows(m: int = 60, d: int = 5) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(m, d)).astype(np.float32)


def test_the_audit_finds_one_wrong_sign_however_many_would_follow() -> None:
    rows = _rows()
    signs = pair_balance(rows, np.zeros(5, dtype=np.float32), "reference")
    audit = Audit(5)
    audit.feed(rows[:20], signs[:20])
    audit.feed(rows[20:], signs[20:])
    assert (audit.wrong, audit.rounding) == (0, 0)
    # The literal rule goes on rightly from the wrong sign.
    h = np.zeros(5, dtype=np.float32)
    before = pair_balance(rows[:30], h, "reference")
    before[29] *= -1
    h += 2 * before[29] * rows[29]
    after = pair_balance(rows[30:], h, "reference")
    audit = Audit(5)
    audit.feed(rows, np.concatenate([before, after]))
    assert (audit.wrong, audit.rounding) == (1, 0)


def test_the_audit_tells_rounding_from_error() -> None:
    """<h, d> = 1e-8 beside terms of 1: float32 cannot know its sign."""
    rows = np.array([[1, 1], [1, -1 + 2.0**-24]], dtype=np.float32)
    for second, expected in ((-1, (0, 0)), (1, (0, 1))):
        audit = Audit(2)
        audit.feed(rows, np.array([1, second], dtype=np.int8))
        assert (audit.wrong, audit.rounding) == expected
    audit = Audit(2)
    audit.feed(np.array([[1, 1], [np.nan, 1], [np.inf, 1]], dtype=np.float32), np.array([1, -1, 1], dtype=np.int8))
    assert (audit.wrong, audit.h.tolist()) == (1, [1, 1])


def test_extra_memory_is_seen() -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("Linux only")
    held: list[np.ndarray] = []
    grown = balance.extra_mib(lambda: held.append(np.ones(2**23)))
    assert grown is not None
    assert grown == pytest.approx(64, abs=8)


def test_vectors_of_the_study_are_centred() -> None:
    drawn = herding.vectors(1000, seed=0)
    assert drawn.shape == (1000, 16)
    assert np.abs(drawn.mean(axis=0, dtype=np.float64)).max() < 1e-6
    assert np.linalg.norm(drawn, axis=1) == pytest.approx(1, abs=0.1)


def test_a_study_beside_the_papers_figures() -> None:
    told: list[herding.Row] = []
    rows = herding.study(2000, [5, 7], epochs=4, tell=told.append)
    assert told == rows
    assert rows[0]["paper"] == 2.64
    assert rows[1]["paper"] is rows[1]["ratio"] is None
    assert rows[1]["vectors"] == 1995
    for row in rows:
        coordinated, random = row["coordinated"], row["random"]
        assert isinstance(coordinated, float)
        assert isinstance(random, float)
        assert coordinated < 0.5 * random


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["balance", "--json", "--case", "20x4,2x5x4", "--backend", "reference", "--repeats", "1"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(row["case"], row["payload"]) for row in results] == [("20x4", "fp32"), ("2x5x4", "fp32"), ("2x5x4", "int8")]
    assert all(math.isfinite(row["ms"]) for row in results)
    assert cli.main(["balance", "--json", "--study", "herding", "--vectors", "200", "--ranks", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["vectors"] == 200


def test_help_loads_no_torch() -> None:
    heavy = "{'torch', 'numba', 'sklearn', 'matplotlib'}"
    code = f"import sys; from hvdgrab.bench import __main__ as m; m._parser(); print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

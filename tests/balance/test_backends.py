from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from hvdgrab.balance import balance_pairs, pair_balance
from hvdgrab.balance.backends import choose, run
from hvdgrab.balance.backends.compiled import private_directory
from hvdgrab.balance.backends.gram import recurrence
from hvdgrab.balance.sign_rules import SignRule
from hvdgrab.errors import ConfigError, UsageError
from tests.balance import backends_harness as harness
from tests.real import ROOT, need

CHOOSE = importlib.import_module("hvdgrab.balance.backends.choose")  # The package's attribute is the function.
BRIEF = ("check_empty", "check_groupings", "check_overflow", "check_strided_sum", "check_ties")
"""What is checked where every operation of a kernel is interpreted; the kernels' own tests know more."""
IN_PROCESS = ("reference", "numba", "torch")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def needs(backend: str) -> str:
    if backend != "reference":
        need(backend, importlib.util.find_spec(backend) is not None)
    return backend


@pytest.mark.parametrize("check", harness.CHECKS)
@pytest.mark.parametrize("backend", IN_PROCESS)
def test_every_backend_equals_the_reference(backend, check):
    check(needs(backend))


def test_the_triton_backend_in_the_interpreter():
    """In a process of its own: the interpreter is chosen when triton is imported."""
    needs("triton")
    result = subprocess.run(
        [sys.executable, "-m", "tests.balance.backends_harness", "triton", *BRIEF],
        cwd=ROOT, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split() == list(BRIEF)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "damping"), [("greedy", 1.0), ("greedy", 0.9), ("walk", 1.0), ("halving", 0.7)])
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_every_rule_and_precision_equals_the_reference(backend, kind, damping, dtype):
    for m, d in harness.shapes(4, seed=3):
        rows = harness.vectors(m, d).astype(dtype)
        rows[m // 2, 0] = harness.NAN if d % 2 else rows[m // 2, 0]
        expected_h, h = np.zeros(d, dtype=dtype), np.zeros(d, dtype=dtype)
        expected = run("reference", rows, expected_h, SignRule(kind, damping, seed=5))
        got = run(needs(backend), rows, h, SignRule(kind, damping, seed=5))
        assert np.array_equal(got[1], expected[1])
        # A threshold that lies within rounding of a product can be met only by chance, which this seed does not have.
        assert np.array_equal(got[0], expected[0])
        if backend == "numba":
            assert np.array_equal(h, expected_h)
        assert np.allclose(h, expected_h, rtol=1e-4, atol=1e-4)


def test_the_compiled_loop_leaves_the_bits_of_the_literal_running_sum():
    needs("numba")
    rows = harness.vectors(203, 517)
    sums = []
    for backend in ("reference", "numba"):
        h = np.zeros(517, dtype=np.float32)
        sums.append((pair_balance(rows, h, backend), h))
    assert harness.assert_explained(rows, sums[0][0], sums[1][0])
    assert np.array_equal(sums[0][1], sums[1][1])


def test_converted_blocks_are_joined_where_they_meet(monkeypatch):
    """Blocks of four rows of float16, with a bad row in the second."""
    needs("numba")
    monkeypatch.setattr("hvdgrab.balance.arrays.BLOCK", 64)
    rows = harness.vectors(14, 16).astype(np.float16)
    rows[5, 3] = np.nan
    harness.check("numba", rows, rows.astype(np.float32))


def test_a_sign_that_rounding_did_not_decide_is_not_explained():
    rows = harness.vectors(9, 40)
    signs = pair_balance(rows, np.zeros(40, dtype=np.float32), "reference")
    wrong = signs.copy()
    wrong[6] *= -1
    with pytest.raises(AssertionError, match="sign 6 differs"):
        harness.assert_explained(rows, signs, wrong)


def test_a_sign_that_rounding_did_decide_is_explained():
    rows = harness.vectors(2, 1031).astype(np.float64)
    rows[1] -= rows[0] * (rows[0] @ rows[1]) / (rows[0] @ rows[0])
    rows = rows.astype(np.float32)
    assert not harness.assert_explained(rows, np.array([1, 1]), np.array([1, -1]))


@pytest.mark.parametrize("backend", IN_PROCESS)
def test_a_running_sum_that_is_not_finite_is_refused(backend):
    for bad in (harness.NAN, harness.INF):
        with pytest.raises(UsageError, match="running_sum holds non-finite"):
            pair_balance(np.ones((5, 2), dtype=np.float32), np.array([bad, 0], dtype=np.float32), needs(backend))


@pytest.mark.parametrize("backend", IN_PROCESS)
def test_wrong_input_is_refused_before_a_backend_sees_it(backend):
    rows, h = np.ones((2, 3), dtype=np.float32), np.zeros(3, dtype=np.float32)
    for differences, running_sum, message in (
        (rows.astype(np.int32), h, "not int32"),
        (rows, np.zeros(4, dtype=np.float32), r"\(2, 3\) and \(4,\)"),
        (rows, torch.zeros(3), "both"),
        (torch.ones(2, 3), torch.zeros(3, device="meta"), "move one"),
        (rows, rows[0], "shares memory"),
    ):
        with pytest.raises(UsageError, match=message):
            balance_pairs(differences, running_sum, backend)


def test_full_precision_whatever_torch_is_set_to():
    rows = harness.vectors(70, 300, kind="integers")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            harness.check("torch", torch.from_numpy(rows))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_worked_example_of_the_recurrence():
    scale, weights = recurrence(np.array([[1.0, 2.0], [2.0, 5.0]]), np.zeros(2), SignRule(), np.zeros(2))
    assert (scale, weights.tolist()) == (1.0, [1.0, -1.0])


GREEDY = SignRule()


def pick(name: str = "auto", device: str = "cpu", width: int = 4096, count: int = 512_000, rule: SignRule = GREEDY, **more: bool):
    return choose(name, device=device, width=width, count=count, rule=rule, **more)


def test_auto_weighs_what_numba_saves_against_loading_it(monkeypatch):
    monkeypatch.setattr(CHOOSE, "_installed", lambda name: True)
    assert pick().name == "numba"
    assert pick(width=25_000_000, count=800).name == "numba"
    assert pick(count=100).name == "reference"
    assert pick(width=8, count=1000).name == "reference"
    assert pick(device="cuda").name == "triton"
    assert pick(device="cuda", rule=SignRule("walk")).name == "torch"
    assert pick(device="cuda", float64=True).name == "torch"
    assert pick(device="mps").name == "torch"
    for choice in (pick(), pick(count=1), pick(device="cuda")):
        assert choice.why.startswith(f"{choice.name}: ")


def test_auto_without_the_packages(monkeypatch):
    monkeypatch.setattr(CHOOSE, "_installed", lambda name: False)
    assert pick().name == "reference"
    assert "not installed" in pick().why
    assert pick(device="cuda").name == "torch"


@pytest.mark.parametrize(("backend", "extra"), [("numba", "fast"), ("triton", "gpu"), ("torch", "torch")])
def test_a_backend_that_is_not_installed_is_never_replaced(backend, extra, monkeypatch):
    monkeypatch.setattr(CHOOSE, "_installed", lambda name: False)
    with pytest.raises(ConfigError, match=rf'pip install "hvdgrab\[{extra}\]"'):
        pair_balance(np.ones((2, 3), dtype=np.float32), np.zeros(3, dtype=np.float32), backend)


def test_triton_says_what_it_cannot_do(monkeypatch):
    monkeypatch.setattr(CHOOSE, "_installed", lambda name: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="needs vectors on a CUDA device, not on cpu"):
        pick("triton")
    with pytest.raises(ConfigError, match="greedy rule without damping"):
        pick("triton", device="cuda", rule=SignRule(damping=0.5))
    with pytest.raises(ConfigError, match="float32 running sum only"):
        pick("triton", device="cuda", float64=True)


def test_numba_is_imported_by_its_backend_alone():
    program = (
        "import sys, numpy as np; from hvdgrab.balance import pair_balance; import hvdgrab.balance.balancer as b;"
        "from hvdgrab.config import BalanceConfig;"
        "pair_balance(np.ones((2, 3), np.float32), np.zeros(3, np.float32));"
        "b.PairBalancer(4096, BalanceConfig(backend='numba'), expected=10**6);"
        "print(*sorted({'numba', 'torch', 'triton'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() == []


@pytest.fixture
def loops(monkeypatch):
    """The module with numba's compiler, which finds no place to cache in but the one that is set for the process."""
    needs("numba")
    module = importlib.import_module("hvdgrab.balance.backends.loops")
    cache = importlib.import_module("numba.core.caching").CacheImpl
    only = [place for place in cache._locator_classes if "UserProvided" in place.__name__]
    monkeypatch.setattr(cache, "_locator_classes", only)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    return module


def doubled(x):
    return x + x


def test_compiled_code_has_a_private_cache_where_no_other_can_be_written(loops, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert loops.compiled(doubled)(21) == 42
    assert list(private_directory(tmp_path).rglob("*.nbc"))
    assert importlib.import_module("numba").config.CACHE_DIR == ""


def test_compiled_code_runs_where_it_cannot_be_cached_at_all(loops, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert loops.compiled(doubled)(21) == 42


def test_a_cache_directory_of_somebody_else_is_not_used(tmp_path):
    own = private_directory(tmp_path)
    assert own is not None
    assert own.stat().st_mode & 0o777 == 0o700
    assert private_directory(tmp_path) == own
    own.chmod(0o777)
    assert private_directory(tmp_path) is None
    own.rmdir()
    own.symlink_to(tmp_path)
    assert private_directory(tmp_path) is None
    assert private_directory(tmp_path / "missing") is None


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["numba", "torch"])
def test_every_shape_equals_the_reference(backend):
    for m in range(1, 18):
        for d in range(1, 1032):
            rows = harness.vectors(m, d)
            expected_h, h = np.zeros(d, dtype=np.float32), np.zeros(d, dtype=np.float32)
            expected, _ = balance_pairs(rows, expected_h, "reference")
            signs, _ = balance_pairs(rows, h, needs(backend))
            same = harness.assert_explained(rows, expected, signs)
            assert not same or backend != "numba" or np.array_equal(h, expected_h), (m, d)

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from hvdgrab.balance import balance_pairs, pair_balance
from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import StateError, UsageError
from tests.balance.backends_harness import vectors

RULES = ("greedy", "walk", "halving")
BACKENDS = ("reference", "numba", "torch")


def balancer(width: int = 37, seed: int = 3, **settings: object) -> PairBalancer:
    return PairBalancer(width, BalanceConfig(**settings), seed=seed)


def fed(made: PairBalancer, rows: np.ndarray, cuts: list[int]) -> PairBalancer:
    for part in np.split(rows, cuts):
        made.feed(part)
    return made


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stream_equals_one_call_of_pair_balance(backend):
    rows = vectors(22, 37, kind="integers")
    rows[9, 1] = np.nan
    h = np.zeros(37, dtype=np.float32)
    signs, dropped = balance_pairs(rows, h)
    made = balancer(backend=backend)
    parts = [made.feed(part) for part in np.split(rows, [3, 4, 12])]
    assert np.array_equal(np.concatenate([part[0] for part in parts]), signs)
    assert np.array_equal(np.concatenate([part[1] for part in parts]), dropped)
    assert np.array_equal(made.signs, signs)
    assert np.array_equal(made.running_sum, h)


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_grouping_into_calls_changes_a_sign(backend, rule, damping):
    """Damped by a half, integers stay exact in float64 for the first steps; after that no product comes near its threshold."""
    rows = vectors(30, 37, kind="integers")
    settings = {"backend": backend, "sign_rule": rule, "damping": damping, "precision": "fp64"}
    whole = fed(balancer(**settings), rows, [])
    for cuts in ([1], [2, 3, 4], [0, 5, 5, 22], list(range(1, 30))):
        parts = fed(balancer(**settings), rows, cuts)
        assert np.array_equal(parts.signs, whole.signs)
        assert np.allclose(parts.running_sum, whole.running_sum, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stop", [0, 1, 11, 30])
def test_saved_and_restored_it_goes_on_as_if_nothing_had_happened(rule, stop):
    """At the start, in the middle and at the end of an epoch that is not the first; with another backend, too."""
    first, rows = vectors(12, 37, seed=1), vectors(30, 37, seed=2)
    settings = {"sign_rule": rule, "carry_over": True, "precision": "fp64"}
    whole = balancer(**settings)
    whole.feed(first)
    whole.begin_epoch()
    whole.feed(rows[:stop])
    state = whole.state_dict()
    whole.feed(rows[stop:])
    for backend in BACKENDS:
        later = balancer(backend=backend, **settings)
        later.feed(vectors(5, 37, seed=9))
        later.load_state_dict(state)
        assert np.array_equal(later.signs, whole.signs[:stop])
        later.feed(rows[stop:])
        assert np.array_equal(later.signs, whole.signs)
        assert np.allclose(later.running_sum, whole.running_sum)
        later.begin_epoch()
        assert len(later.signs) == 0


def test_a_state_shares_no_memory_and_is_plain():
    made = balancer()
    made.feed(vectors(4, 37))
    state = made.state_dict()
    kept = {name: np.copy(value) for name, value in state.items()}
    made.feed(vectors(4, 37, seed=1))
    assert all(np.array_equal(state[name], kept[name]) for name in state)
    assert {type(value) for value in state.values()} <= {int, float, bool, str, np.ndarray}
    other = balancer()
    other.load_state_dict(state)
    state["running_sum"][...] = 7
    state["signs"][...] = 7
    assert np.array_equal(other.running_sum, kept["running_sum"])
    assert np.array_equal(other.signs, kept["signs"])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (balancer(width=38), "width = 37, this run has 38"),
        (balancer(precision="fp64"), "precision = 'fp32', this run has 'fp64'"),
        (balancer(carry_over=True), "carry_over = False, this run has True"),
        (balancer(sign_rule="walk"), "sign_rule = 'greedy', this run has 'walk'"),
        (balancer(damping=0.5), "damping = 1.0, this run has 0.5"),
        (balancer(seed=4), "seed = 3, this run has 4"),
    ],
)
def test_a_foreign_state_is_refused_with_both_values(other, message):
    made = balancer()
    made.feed(vectors(4, 37))
    with pytest.raises(StateError, match=message):
        other.load_state_dict(made.state_dict())
    assert not other.running_sum.any()
    assert len(other.signs) == 0


def test_a_damaged_or_newer_state_is_refused():
    made = balancer()
    made.feed(vectors(4, 37))
    for name, value in (("version", 2), ("running_sum", np.zeros(5)), ("signs", np.ones(3, dtype=np.int8))):
        with pytest.raises(StateError, match="saved balancing state"):
            balancer().load_state_dict({**made.state_dict(), name: value})


@pytest.mark.parametrize("rule", RULES)
def test_every_epoch_starts_at_zero_unless_carried_over(rule):
    rows = vectors(20, 37)
    fresh, carried = balancer(sign_rule=rule), balancer(sign_rule=rule, carry_over=True)
    for made in (fresh, carried):
        made.feed(rows)
        made.begin_epoch()
        assert len(made.signs) == 0
    assert not fresh.running_sum.any()
    assert fresh.state_dict()["rule_state"] == 0.0
    assert carried.running_sum.any()
    assert (carried.state_dict()["rule_state"] > 0.0) == (rule != "greedy")
    again = [fresh.feed(rows)[0].tolist(), balancer(sign_rule=rule).feed(rows)[0].tolist()]
    assert (again[0] == again[1]) == (rule == "greedy")  # The random rules draw anew in each epoch.


@pytest.mark.parametrize("backend", BACKENDS)
def test_precision_is_that_of_the_running_sum(backend):
    """10^8 + 1 - 10^8 in float32 forgets the one."""
    rows = np.array([[1e8, 1e8], [-1.0, 1.0], [1e8, 1e8]])
    for precision, expected in (("fp32", 0.0), ("fp64", 1.0)):
        made = balancer(2, backend=backend, precision=precision)
        made.feed(rows)
        assert made.running_sum.dtype == (np.float32 if precision == "fp32" else np.float64)
        assert made.running_sum[1] == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_every_type(backend):
    rows = torch.from_numpy(vectors(9, 37, kind="integers"))
    expected = pair_balance(rows.numpy(), np.zeros(37, dtype=np.float32))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        signs, dropped = balancer(backend=backend).feed(rows.to(dtype).requires_grad_())
        assert isinstance(signs, np.ndarray)
        assert isinstance(dropped, np.ndarray)
        assert np.array_equal(signs, expected)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 38), dtype=np.float32), r"\(2, 38\) and \(37,\)"),
        (np.zeros(37, dtype=np.float32), r"\(37,\) and"),
        (np.zeros((2, 37), dtype=np.int64), "not int64"),
        ([[0.0] * 37], "not list"),
    ],
)
def test_wrong_vectors_are_refused_and_leave_no_trace(rows, message):
    made = balancer()
    with pytest.raises(UsageError, match=message):
        made.feed(rows)
    assert len(made.signs) == 0
    with pytest.raises(UsageError, match="shares memory"):
        made.feed(made.running_sum[None])
    with pytest.raises(UsageError, match="at least 0"):
        balancer(width=-1)


def test_a_sum_that_overflowed_is_reported():
    made = balancer(2, sign_rule="walk")
    made.running_sum[0] = np.inf
    with pytest.raises(UsageError, match="non-finite"):
        made.feed(np.ones((5, 2), dtype=np.float32))


def test_the_choice_is_said_and_follows_the_expected_number():
    assert PairBalancer(4096, expected=10).backend == "reference"
    assert PairBalancer(4096, BalanceConfig(backend="torch"), expected=10**6).backend == "torch"
    assert "asked for by name" in balancer(backend="numba").choice
    made = PairBalancer(4096, expected=10**6)
    assert made.choice.startswith(made.backend)


def test_more_vectors_than_expected():
    made = PairBalancer(3, expected=2)
    rows = vectors(300, 3)
    for part in np.split(rows, 60):
        made.feed(part)
    assert np.array_equal(made.signs, pair_balance(rows, np.zeros(3, dtype=np.float32)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_warming_up_in_another_thread_while_vectors_come(backend):
    rows = vectors(40, 37, kind="integers")
    made = balancer(backend=backend)
    threads = [threading.Thread(target=made.warm_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    fed(made, rows, list(range(1, 40)))
    for thread in threads:
        thread.join()
    made.warm_up()
    assert np.array_equal(made.signs, pair_balance(rows, np.zeros(37, dtype=np.float32)))

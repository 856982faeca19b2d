from __future__ import annotations

import math

import numpy as np
import pytest

from hvdgrab.balance.backends import run
from hvdgrab.balance.sign_rules import GREEDY, HALVING, HALVING_PENALTY, WALK, SignRule, decide, threshold, uniforms
from hvdgrab.errors import ConfigError, StateError

RULES = ("greedy", "walk", "halving")


def largest_prefix(rule: str, n: int, d: int, seed: int) -> float:
    """The largest norm of a running sum over n random unit vectors, fed in eight calls."""
    rows = np.random.default_rng(seed).normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    h = np.zeros(d)
    signs = run("reference", rows, h, SignRule(rule, seed=seed))[0]
    return float(np.linalg.norm(np.cumsum(signs[:, None] * rows, axis=0), axis=1).max())


def test_greedy_is_the_sign_that_does_not_lengthen_the_sum():
    assert threshold(GREEDY, 9.0, np.ones(1)) == 0.0
    assert [decide(product, 0.0, u) for product in (-1.0, 0.0, 1.0) for u in (0.0, 0.9)] == [1, 1, 1, 1, -1, -1]


@pytest.mark.parametrize(("product", "share"), [(0.0, 0.5), (1.0, 0.25), (-1.0, 0.75), (2.0, 0.0), (3.0, 0.0), (-3.0, 1.0)])
def test_the_chance_of_plus_is_half_minus_the_product_over_twice_the_threshold(product, share):
    grid = (np.arange(1000) + 0.5) / 1000
    assert np.mean([decide(product, 2.0, float(u)) == 1 for u in grid]) == pytest.approx(share, abs=1e-3)


def test_the_walk_scales_by_the_largest_norm_so_far():
    state = np.zeros(1)
    assert [threshold(WALK, square, state) for square in (4.0, 9.0, 1.0)] == [4.0, 9.0, 9.0]


def test_halving_by_hand():
    """b = 2: a = max(0, 4) = 4, σ² = 4.  b = 1: a = 2·sqrt(2 ln 4) = 3.33, 1 + (1 - 2a)·4/a² < 0, so σ² stays."""
    state = np.zeros(1)
    assert threshold(HALVING, 4.0, state) == 4.0
    assert state[0] == 4.0
    a = 2.0 * math.sqrt(2.0 * math.log(4.0))
    assert threshold(HALVING, 1.0, state) == pytest.approx(a)
    assert pytest.approx(2.0 * math.log(4.0)) == HALVING_PENALTY
    assert state[0] == 4.0
    # a = max(4·2·sqrt(2 ln 4), 16) = max(13.3, 16); σ² = 4 + 16·(1 + (16 - 32)·4/256) = 4 + 12.
    assert threshold(HALVING, 16.0, state) == 16.0
    assert state[0] == 16.0


def test_halving_knows_no_unit_of_length():
    """Vectors c times as long give thresholds c² times as large, hence the same signs; also where c² leaves float32's range."""
    squares = np.random.default_rng(0).random(50) + 0.1
    for scale in (1e-150, 1e-30, 1e30):
        one, other = np.zeros(1), np.zeros(1)
        for square in squares:
            expected = scale * threshold(HALVING, float(square), one)
            assert threshold(HALVING, scale * float(square), other) == pytest.approx(expected)


def test_a_zero_vector_changes_no_rule():
    for code in (GREEDY, WALK, HALVING):
        state = np.array([3.0])
        threshold(code, 0.0, state)
        assert state[0] == 3.0
    assert threshold(HALVING, 0.0, np.zeros(1)) == 0.0


def test_uniform_numbers_depend_on_seed_epoch_and_index_alone():
    whole = uniforms(5, 2, 0, 50)
    assert np.array_equal(np.concatenate([uniforms(5, 2, first, 7) for first in range(0, 49, 7)]), whole[:49])
    assert not np.array_equal(uniforms(6, 2, 0, 50), whole)
    assert not np.array_equal(uniforms(5, 3, 0, 50), whole)
    assert len(uniforms(5, 2, 3, 0)) == 0
    many = uniforms(2**64 - 1, 0, 10**12, 20_000)
    assert 0.0 <= many.min() < 1e-3 < 0.999 < many.max() < 1.0
    assert abs(many.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 0.03


def test_uniform_numbers_are_the_same_for_ever():
    """Saved runs depend on them."""
    assert uniforms(0, 0, 0, 3).tolist() == [0.011546754286331562, 0.24154919656271812, 0.11142585551493822]


@pytest.mark.parametrize("rule", RULES)
def test_the_sum_grows_slower_than_with_random_signs(rule):
    """Random signs reach about sqrt(n) = 63 in norm; sixteen times the vectors make their sum four times as long."""
    short = np.mean([largest_prefix(rule, 250, 16, seed) for seed in range(3)])
    long = np.mean([largest_prefix(rule, 4000, 16, seed) for seed in range(3)])
    assert long < 12
    assert long / short < 2.2


@pytest.mark.parametrize("rule", ["walk", "halving"])
def test_random_rules_follow_their_seed(rule):
    rows = np.random.default_rng(0).normal(size=(60, 5))

    def signs(seed: int, epoch: int = 0) -> list[int]:
        balancing = SignRule(rule, seed=seed)
        balancing.epoch = epoch
        return run("reference", rows, np.zeros(5), balancing)[0].tolist()

    assert signs(1) == signs(1)
    assert signs(1) != signs(2)
    assert signs(1) != signs(1, epoch=1)


def test_damping_shrinks_the_sum_before_each_vector():
    h = np.array([2.0, 0.0])
    signs = run("reference", np.array([[1.0, 1.0], [4.0, 0.0]]), h, SignRule(damping=0.5))[0]
    # h = 1·(1, 0) - (1, 1) = (0, -1), then (0, -1/2) + (4, 0).
    assert signs.tolist() == [-1, 1]
    assert h.tolist() == [4.0, -0.5]


def test_a_dropped_vector_is_counted_but_neither_damps_nor_tunes():
    rule, h = SignRule("halving", damping=0.5), np.array([2.0, 0.0])
    signs, dropped = run("reference", np.array([[np.nan, 1.0]]), h, rule)
    assert (signs.tolist(), dropped.tolist(), h.tolist()) == ([1], [True], [2.0, 0.0])
    assert (rule.index, rule.state[0]) == (1, 0.0)


def test_a_vector_too_long_for_a_random_rule_is_dropped():
    row = np.array([[3e38, 0.0]], dtype=np.float32)
    for backend in ("reference", "numba", "torch"):
        for kind, expected in (("greedy", False), ("walk", True), ("halving", True)):
            assert run(backend, row, np.zeros(2, dtype=np.float32), SignRule(kind))[1].tolist() == [expected]


@pytest.mark.parametrize("options", [{"kind": "coin"}, {"damping": 0.0}, {"damping": 1.1}, {"seed": -1}, {"seed": 2**64}])
def test_settings_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        SignRule(**options)


def test_a_state_of_another_rule_is_refused():
    state = SignRule("walk", seed=1).state_dict()
    for other in (SignRule("halving", seed=1), SignRule("walk", 0.9, seed=1), SignRule("walk", seed=2)):
        with pytest.raises(StateError, match="the saved balancing state has"):
            other.load_state_dict(state)

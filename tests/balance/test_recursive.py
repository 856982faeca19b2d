from __future__ import annotations

import numpy as np
import pytest

from hvdgrab.balance import RecursiveBalance, build_rule, herding_bound
from hvdgrab.balance.reference import recursive_order
from hvdgrab.bench.herding import vectors
from hvdgrab.config import BalanceConfig
from tests.balance.data import coordinated_pass, random_gradients, random_orders
from tests.balance.test_rules import epoch

LITERAL = BalanceConfig(backend="reference")


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 31, 32, 33, 100])
def test_streaming_equals_the_literal_recursion(n, depth):
    gradients, expected = random_gradients(1, n, 6)[0], random_orders(1, n)[0].tolist()
    rule = RecursiveBalance(n, 6, np.array(expected), config=LITERAL, depth=depth)
    for _ in range(3):
        expected = recursive_order(gradients, expected, depth)
        assert epoch(rule, gradients).tolist() == expected


def test_gradients_that_are_not_finite_get_a_plus_at_every_node():
    gradients, order = random_gradients(1, 32, 3)[0], random_orders(1, 32)[0]
    gradients[4], gradients[9] = np.nan, np.inf
    rule = RecursiveBalance(32, 3, order, config=LITERAL, depth=3)
    assert epoch(rule, gradients).tolist() == recursive_order(gradients, order.tolist(), 3)


def test_by_hand():
    """Scalars 1 2 3 1, depth 2.

    Root: 1 - 2 = -1, h = 0 -> +, h = -1: left gets unit 0, right unit 1.  3 - 1 = 2, -1·2 < 0 -> +: left gets 2, right 3.
    Left node: units 0 and 2, difference -2, h = 0 -> +: leaves [0] and [2].  Right node: units 1 and 3: leaves [1] and [3].
    """
    rule = RecursiveBalance(4, 1, config=LITERAL, depth=2)
    signs = [rule.add(np.array([g], dtype=np.float32)) for g in (1, 2, 3, 1)]
    assert signs == [0, 1, 0, 1]
    assert rule.next_order().tolist() == [0, 2, 1, 3]


def test_depth_one_is_pair_balance_for_every_sign_rule():
    gradients = random_gradients(1, 51, 4)[0]
    for sign_rule in ("greedy", "walk", "halving"):
        config = BalanceConfig(backend="reference", sign_rule=sign_rule)
        pair = build_rule("id-grab", n=51, d=4, config=config)
        tree = build_rule("recursive", n=51, d=4, config=config, depth=1)
        for _ in range(3):
            assert epoch(pair, gradients).tolist() == epoch(tree, gradients).tolist()


def test_skipped_and_unseen_units_stand_in_the_middle():
    rule = RecursiveBalance(9, 1, config=LITERAL, depth=1)
    rule.skip()
    for _ in range(5):
        rule.add(np.ones(1))
    # (0, 1) has no sign; (2, 3) and (4, 5) do; 6, 7 and 8 were never seen.
    assert rule.next_order().tolist() == [2, 4, 0, 1, 6, 7, 8, 5, 3]


def test_one_epoch_does_what_pair_balance_needs_several_for():
    """Measured at n = 4,096: random 20, after one epoch 3.2 (depth 5), against 10.8 of PairBalance."""
    n = 2048
    gradients, start = vectors(n, seed=2)[None], random_orders(1, n)
    random = herding_bound(gradients, start)[1]
    once = herding_bound(gradients, epoch(RecursiveBalance(n, 16, start[0]), gradients[0])[None])[1]
    pairs = herding_bound(gradients, coordinated_pass(gradients, start))[1]
    assert once < 0.4 * random
    assert once < 0.6 * pairs


def test_leaves_are_equally_full_and_memory_is_two_vectors_a_node():
    rule = RecursiveBalance(64, 10, depth=3)
    for gradient in random_gradients(1, 64, 10)[0]:
        rule.add(gradient)
    state = rule.state_dict()
    assert [len(leaf) for leaf in state["leaves"]] == [8] * 8
    assert len(state["nodes"]) == 7
    assert state["vectors"] == {}
    rule.next_order()
    for gradient in random_gradients(1, 7, 10)[0]:
        rule.add(gradient)
    assert sorted(rule.state_dict()["vectors"]) == ["0", "1", "2", "3", "4", "5", "6"]

"""One harness over every rule that orders a rank's units."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.balance import MeanBalance, PairRule, RecursiveBalance, SeededRule, build_rule, herding_bound, seeded_order
from hvdgrab.balance.reference import coordinated_epoch
from hvdgrab.balance.rules import BALANCED, SEEDED
from hvdgrab.config import ORDERS, BalanceConfig
from hvdgrab.errors import ConfigError, StateError, UsageError
from tests.balance.data import random_gradients, random_orders

D = 5
LITERAL = BalanceConfig(backend="reference")


class Kind(NamedTuple):
    name: str
    options: Mapping[str, Any] = MappingProxyType({})

    def build(self, n: int, d: int = D, **more: Any):
        return build_rule(self.name, n=n, d=d, **{"seed": 3, **self.options, **more})


def with_rule(name: str, **settings: Any) -> Kind:
    return Kind(name, {"config": BalanceConfig(backend="reference", **settings)})


SEEDED_KINDS = [*(Kind(name, {"rank": 1, "size": 3}) for name in SEEDED), Kind("block-reversal", {"block_size": 2})]
BALANCED_KINDS = [*(Kind(name) for name in BALANCED), Kind("recursive", {"depth": 1}), Kind("recursive", {"depth": 3})]
OTHER_SIGNS = [
    with_rule("id-grab", sign_rule="walk"),
    with_rule("id-grab", sign_rule="halving", carry_over=True),
    with_rule("id-grab", damping=0.9, precision="fp64"),
    with_rule("recursive", sign_rule="walk"),
]
KINDS = [*SEEDED_KINDS, *BALANCED_KINDS, *OTHER_SIGNS]
every_rule = pytest.mark.parametrize("kind", KINDS, ids=str)
balanced = pytest.mark.parametrize("kind", [*BALANCED_KINDS, *OTHER_SIGNS], ids=str)


def epoch(rule, gradients: np.ndarray) -> np.ndarray:
    for unit in rule.order[rule.position :]:
        rule.add(gradients[unit])
    return rule.next_order()


def test_every_order_of_the_settings_has_a_rule():
    assert {*SEEDED, *BALANCED} == set(ORDERS)
    built = {name: type(build_rule(name, n=4, d=2)) for name in (*SEEDED, *BALANCED)}
    assert isinstance(build_rule("grab", n=4, d=2, config=LITERAL), MeanBalance)
    expected = {"grab": MeanBalance, "id-grab": PairRule, "cd-grab": PairRule, "recursive": RecursiveBalance}
    assert built == {**dict.fromkeys(SEEDED, SeededRule), **expected}


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_every_order_is_a_permutation_whatever_was_seen(data):
    kind = data.draw(st.sampled_from(KINDS), label="rule")
    n = data.draw(st.integers(1, 40), label="n")
    gradients = random_gradients(1, n, D, seed=n)[0]
    gradients[data.draw(st.lists(st.integers(0, n - 1), max_size=3), label="not finite")] = np.nan
    rule = kind.build(n)
    for _ in range(2):
        seen = data.draw(st.lists(st.booleans(), max_size=n), label="seen")
        for unit, has_gradient in zip(rule.order, seen, strict=False):
            _ = rule.add(gradients[unit]) if has_gradient else rule.skip()
        assert rule.position == len(seen)
        order = rule.next_order()
        assert order.dtype == np.int64
        assert sorted(order.tolist()) == list(range(n))
        assert rule.position == 0


@every_rule
def test_orders_are_copies_and_a_function_of_the_settings(kind):
    gradients = random_gradients(1, 20, D)[0]
    first, second = kind.build(20), kind.build(20)
    for _ in range(3):
        given_away = first.order
        given_away[:] = 0
        following = epoch(first, gradients)
        assert np.array_equal(following, epoch(second, gradients))
        following[:] = 0
        assert np.array_equal(first.order, second.order)


@every_rule
def test_an_epoch_of_which_nothing_was_seen_keeps_the_order_or_draws_a_new_one(kind):
    rule = kind.build(12)
    before = rule.order
    after = rule.next_order()
    if kind.name in BALANCED:
        assert np.array_equal(after, before)
    else:
        settings = {"rank": 0, "size": 1, **kind.options}
        assert np.array_equal(after, seeded_order(kind.name, n=12, epoch=1, seed=3, **settings))


@every_rule
@pytest.mark.parametrize("stop", [0, 6, 7, 13])
def test_resume_at_any_position_is_bit_exact(kind, stop, tmp_path):
    gradients = random_gradients(1, 13, D)[0]
    whole = kind.build(13)
    epoch(whole, gradients)
    for unit in whole.order[:stop]:
        whole.add(gradients[unit])
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    resumed = kind.build(13)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.position == stop
    assert resumed.dropped == whole.dropped
    for unit in whole.order[stop:]:
        assert whole.add(gradients[unit]) == resumed.add(gradients[unit])
    for _ in range(2):
        assert whole.next_order().tolist() == resumed.next_order().tolist()
        assert epoch(whole, gradients).tolist() == epoch(resumed, gradients).tolist()


@balanced
def test_a_saved_state_is_a_copy(kind):
    gradients = random_gradients(1, 9, D)[0]
    one = kind.build(9)
    for unit in one.order[:5]:
        one.add(gradients[unit])
    state = one.state_dict()
    before = repr(state)
    other = kind.build(9)
    other.load_state_dict(state)
    epoch(one, gradients)
    epoch(other, gradients)
    assert repr(state) == before


@every_rule
def test_states_of_other_rules_and_sizes_are_refused(kind):
    state = kind.build(8).state_dict()
    with pytest.raises(StateError, match="has n = 8, this run has 9"):
        kind.build(9).load_state_dict(state)
    other = Kind("fixed" if kind.name in BALANCED else "id-grab").build(8)
    if kind.name != "fixed":
        with pytest.raises(StateError, match="has rule = "):
            other.load_state_dict(state)
    if kind.name in BALANCED:
        with pytest.raises(StateError, match=f"has d = {D}, this run has 6"):
            kind.build(8, d=6).load_state_dict(state)
    state["order"][0] = state["order"][1]
    with pytest.raises(StateError, match="damaged"):
        kind.build(8).load_state_dict(state)


def test_recursion_of_another_depth_is_refused():
    with pytest.raises(StateError, match="depth = 3, this run has 2"):
        build_rule("recursive", n=8, d=2, depth=2).load_state_dict(build_rule("recursive", n=8, d=2, depth=3).state_dict())


@balanced
def test_gradients_are_read_not_kept(kind):
    gradients = random_gradients(1, 16, D)[0]
    by_value, by_buffer, buffer = kind.build(16), kind.build(16), torch.zeros(D)
    for unit in by_value.order:
        by_value.add(gradients[unit])
        buffer.copy_(torch.from_numpy(gradients[unit]))
        by_buffer.add(buffer)
        buffer.fill_(7)
    assert by_value.next_order().tolist() == by_buffer.next_order().tolist()


@balanced
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_counted_and_forgotten(kind, bad):
    gradients = random_gradients(1, 16, D)[0]
    rule = kind.build(16)
    spoilt = gradients.copy()
    spoilt[rule.order[5]] = bad
    for unit in rule.order:
        rule.add(spoilt[unit])
    assert rule.dropped == 1
    assert "nan" not in repr(rule.state_dict().get("nodes", rule.state_dict().get("balancer", "")))
    rule.next_order()
    assert rule.dropped == 0
    epoch(rule, gradients)


@every_rule
def test_too_many_units_are_refused(kind):
    rule = kind.build(1)
    rule.add(np.zeros(D))
    for more in (lambda: rule.add(np.zeros(D)), rule.skip):
        with pytest.raises(UsageError, match="next_order"):
            more()


@balanced
def test_wrong_vectors_and_orders_are_refused(kind):
    with pytest.raises(UsageError, match=r"shape \(5,\), not \(6,\)"):
        kind.build(2).add(np.zeros(6))
    with pytest.raises(UsageError, match="NumPy array or a torch tensor"):
        kind.build(2).add([0.0] * D)
    with pytest.raises(UsageError, match="permutation"):
        kind.build(2, order=np.array([0, 0]))
    with pytest.raises(UsageError):
        kind.build(0)


@balanced
def test_balancing_lowers_the_bound(kind):
    gradients = random_gradients(1, 200, 8) + np.float32(1)
    rule = kind.build(200, d=8)
    random = np.mean([herding_bound(gradients, random_orders(1, 200, seed=s))[0] for s in range(1, 6)])
    bounds = [herding_bound(gradients, epoch(rule, gradients[0])[None])[0] for _ in range(4)]
    # Measured: 0.3 to 0.5; a running sum that is carried over costs what it is known to cost, 0.7.
    carried_over = kind.options.get("config", LITERAL).carry_over
    assert np.mean(bounds[1:]) < (0.8 if carried_over else 0.6) * random


def test_pairs_of_one_rank_equal_the_literal_algorithm():
    for n in (1, 2, 7, 30):
        gradients, expected = random_gradients(1, n, D), random_orders(1, n)
        rule = build_rule("cd-grab", n=n, d=D, order=expected[0], config=LITERAL)
        for _ in range(4):
            expected = coordinated_epoch(gradients, expected)
            assert epoch(rule, gradients[0]).tolist() == expected[0].tolist()


def test_a_skipped_unit_leaves_its_pair_without_a_sign():
    """Pairs (0, 1) and (4, 5) have none: their units fill slots 0 and 5, 2 and 3."""
    rule = build_rule("id-grab", n=6, d=1, order=np.arange(6), config=LITERAL)
    rule.skip()
    assert [rule.add(np.ones(1)) for _ in range(3)] == [0, 0, 1]
    rule.add(np.ones(1))
    rule.skip()
    assert rule.next_order().tolist() == [0, 2, 1, 4, 3, 5]


def test_first_orders_are_shared_with_training():
    for name in BALANCED:
        first = build_rule(name, n=9, d=1, seed=4, rank=0, size=1).order
        assert np.array_equal(first, seeded_order("cd-grab", n=9, epoch=0, seed=4, rank=0, size=1))


def test_random_signs_differ_between_ranks_but_not_between_runs():
    def orders(rank: int) -> list[int]:
        rule = build_rule("id-grab", n=64, d=1, rank=rank, size=2, order=np.arange(64), config=BalanceConfig(sign_rule="walk"))
        return epoch(rule, np.ones((64, 1), dtype=np.float32)).tolist()

    gradients = random_gradients(1, 64, 3)[0]
    pair = [
        build_rule("id-grab", n=64, d=3, rank=rank, size=2, order=np.arange(64), config=BalanceConfig(sign_rule="walk"))
        for rank in (0, 1, 1)
    ]
    first, second, again = (epoch(rule, gradients).tolist() for rule in pair)
    assert first != second == again
    assert orders(0) == list(range(0, 64, 2)) + list(range(63, 0, -2))  # equal gradients: all differences are zero, all signs +


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "best"}, ConfigError, "unknown rule 'best'; valid are block-reversal, cd-grab"),
        ({"name": "rr", "depth": 2}, ConfigError, "'rr' has no option depth; it takes none"),
        ({"name": "recursive", "block_size": 2}, ConfigError, "it takes depth"),
        ({"name": "recursive", "depth": 0}, ConfigError, "1 … 12, not 0"),
        ({"name": "cd-grab", "size": 2}, UsageError, "coordinates 2 ranks"),
        ({"name": "grab", "config": BalanceConfig(sign_rule="walk", damping=0.5)}, ConfigError, "has no sign_rule, damping"),
        ({"name": "grab", "config": BalanceConfig(backend="numba")}, ConfigError, "has no backend"),
        ({"name": "fixed", "order": np.arange(3)}, UsageError, "leave order out"),
        ({"name": "block-reversal", "block_size": 0}, ConfigError, "block_size"),
    ],
)
def test_what_no_rule_can_follow_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        build_rule(**{"n": 3, "d": 2, **arguments})


def test_a_seeded_rule_of_another_name_is_refused():
    with pytest.raises(ConfigError, match="not made from a seed"):
        SeededRule("id-grab", 3, seed=0)


def test_the_state_of_another_sign_rule_is_refused():
    rule = build_rule("id-grab", n=4, d=2, config=BalanceConfig(sign_rule="walk"))
    with pytest.raises(StateError, match="sign_rule"):
        rule.load_state_dict(build_rule("id-grab", n=4, d=2).state_dict())

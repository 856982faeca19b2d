from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.balance import build_rule, herding_bound, order_offline, seeded_order
from hvdgrab.balance.offline import Pass
from hvdgrab.balance.reference import coordinated_epoch
from hvdgrab.balance.rules import BALANCED, SEEDED
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import ConfigError, UsageError
from tests.balance.data import random_gradients, random_orders

LITERAL = BalanceConfig(backend="reference")


@pytest.mark.parametrize("block", [1, 2, 5, None])
@pytest.mark.parametrize(("ranks", "n"), [(1, 1), (1, 9), (3, 10), (4, 7)])
def test_coordinated_passes_equal_the_literal_algorithm(ranks, n, block):
    gradients, orders = random_gradients(ranks, n, 6), random_orders(ranks, n)
    expected = orders
    for _ in range(3):
        expected = coordinated_epoch(gradients, expected)
    assert np.array_equal(order_offline(gradients, 3, orders=orders, config=LITERAL, block=block), expected)


def test_independent_passes_equal_each_rank_alone():
    gradients, orders = random_gradients(3, 11, 6), random_orders(3, 11)
    together = order_offline(gradients, 4, "id-grab", orders=orders, config=LITERAL, block=2)
    for rank in range(3):
        assert np.array_equal(together[rank], order_offline(gradients[rank], 4, orders=orders[rank], config=LITERAL))


@pytest.mark.parametrize("rule", [*SEEDED, *BALANCED])
def test_every_rule_does_offline_what_it_does_unit_by_unit(rule):
    gradients = random_gradients(1, 21, 4)[0]
    one = build_rule(rule, n=21, d=4, seed=5)
    for _ in range(3):
        for unit in one.order:
            one.add(gradients[unit])
        expected = one.next_order()
    assert np.array_equal(order_offline(gradients, 3, rule, seed=5, block=4), expected)


@pytest.mark.parametrize("sign_rule", ["walk", "halving"])
@pytest.mark.parametrize("carry_over", [False, True])
def test_random_signs_and_carried_sums_are_those_of_the_rule(sign_rule, carry_over):
    gradients = random_gradients(1, 20, 4)[0]
    config = BalanceConfig(backend="reference", sign_rule=sign_rule, carry_over=carry_over, damping=0.9, precision="fp64")
    one = build_rule("id-grab", n=20, d=4, seed=5, config=config)
    for _ in range(3):
        for unit in one.order:
            one.add(gradients[unit])
        expected = one.next_order()
    assert np.array_equal(order_offline(gradients, 3, "id-grab", seed=5, config=config), expected)


def test_the_recursion_takes_its_depth():
    gradients = random_gradients(1, 40, 4)[0]
    shallow, deep = (order_offline(gradients, 1, "recursive", depth=depth) for depth in (1, 3))
    assert not np.array_equal(shallow, deep)


def test_no_pass_gives_the_first_orders():
    gradients = random_gradients(2, 8, 3)
    expected = [seeded_order("cd-grab", n=8, epoch=0, seed=3, rank=rank, size=2) for rank in range(2)]
    assert np.array_equal(order_offline(gradients, 0, seed=3), expected)
    orders = random_orders(2, 8)
    assert np.array_equal(order_offline(gradients, 0, orders=orders), orders)


@given(ranks=st.integers(1, 4), n=st.integers(1, 30), d=st.integers(0, 4), block=st.integers(1, 9), bad=st.booleans())
@settings(max_examples=40, deadline=None)
@pytest.mark.filterwarnings("ignore:.* were not finite")
def test_results_are_permutations(ranks, n, d, block, bad):
    gradients = random_gradients(ranks, n, d)
    if bad:
        gradients[0, n // 2] = np.inf
    orders = order_offline(gradients, 2, block=block)
    assert np.array_equal(np.sort(orders, axis=1), np.tile(np.arange(n), (ranks, 1)))


def test_matrices_on_disk_in_half_precision_and_as_tensors(tmp_path):
    stored = random_gradients(2, 30, 9).astype(np.float16)
    np.save(tmp_path / "g.npy", stored)
    expected = order_offline(stored.astype(np.float32), 3)
    mapped = np.load(tmp_path / "g.npy", mmap_mode="r")
    for gradients in (stored, mapped, np.asfortranarray(stored), stored[:, :, ::-1].copy()[:, :, ::-1]):
        result = order_offline(gradients, 3)
        assert type(result) is np.ndarray
        assert np.array_equal(result, expected)
    for dtype in (torch.float16, torch.float32, torch.float64):
        result = order_offline(torch.from_numpy(stored).to(dtype).requires_grad_(), 3)
        assert isinstance(result, torch.Tensor)
        assert result.dtype == torch.int64
        assert np.array_equal(result.numpy(), expected)


def test_bfloat16_tensors():
    stored = torch.from_numpy(random_gradients(1, 20, 5)[0]).bfloat16()
    assert torch.equal(order_offline(stored, 2), order_offline(stored.float(), 2))


def test_every_pass_is_reported_with_its_bound():
    gradients = random_gradients(3, 60, 8)
    passes: list[Pass] = []
    orders = order_offline(gradients, 6, on_pass=passes.append)
    assert [report.number for report in passes] == list(range(7))
    assert (passes[-1].l2, passes[-1].linf) == pytest.approx(herding_bound(gradients, orders), rel=1e-9)
    first = order_offline(gradients, 0)
    assert (passes[0].l2, passes[0].linf) == pytest.approx(herding_bound(gradients, first), rel=1e-9)
    assert passes[-1].l2 < 0.6 * passes[0].l2
    assert not any(report.dropped for report in passes)


def test_only_the_layers_asked_for_take_part():
    gradients = random_gradients(2, 30, 9)
    table = [("a.weight", 4), ("a.bias", 2), ("b.weight", 3)]
    chosen = order_offline(gradients, 3, parameters=table, layers=["*.weight"], config=LITERAL)
    assert np.array_equal(chosen, order_offline(gradients[:, :, [0, 1, 2, 3, 6, 7, 8]], 3, config=LITERAL))
    assert np.array_equal(order_offline(gradients, 3, parameters=table), order_offline(gradients, 3))
    with pytest.raises(UsageError, match="no parameter matches 'c'"):
        order_offline(gradients, 3, parameters=table, layers=["c"])


def test_normalised_layers_count_alike():
    """A layer a thousand times as large would decide alone."""
    gradients = random_gradients(1, 200, 16)[0]
    scaled = gradients.copy()
    scaled[:, :8] *= 1000
    table = {"large": (0, 8), "small": (8, 8)}
    alone = order_offline(scaled, 3, parameters=table)
    alike = order_offline(scaled, 3, parameters=table, normalise_layers=True)
    assert np.array_equal(alike, order_offline(gradients, 3, parameters=table, normalise_layers=True))
    parts = gradients.reshape(200, 2, 8)
    unit = (parts / np.linalg.norm(parts, axis=2, keepdims=True)).reshape(200, 16)
    assert herding_bound(unit[None], alike[None])[0] < 0.8 * herding_bound(unit[None], alone[None])[0]


def test_gradients_that_are_not_finite_are_reported():
    gradients = random_gradients(1, 20, 3)[0]
    gradients[4] = np.nan
    passes: list[Pass] = []
    with pytest.warns(UserWarning, match="3 pairs"):
        order_offline(gradients, 3, on_pass=passes.append)
    assert [report.dropped for report in passes] == [0, 1, 1, 1]
    assert np.isnan(passes[0].l2)


def test_no_second_copy_of_the_matrix_is_held():
    gradients = random_gradients(4, 2_000, 256)  # 8 MB
    order_offline(gradients[:, :50], 1, block=64)
    tracemalloc.start()
    order_offline(gradients, 1, block=64, on_pass=lambda report: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.3 * gradients.nbytes


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"gradients": [[0.0]]}, UsageError, "not list"),
        ({"gradients": np.zeros(3)}, UsageError, r"\(W, n, d\) or \(n, d\)"),
        ({"gradients": np.zeros((2, 3), dtype=np.int64)}, UsageError, "int64"),
        ({"gradients": np.zeros((2, 0, 3))}, UsageError, "nothing to order"),
        ({"passes": -1}, UsageError, "at least 0"),
        ({"block": 0}, UsageError, "block at least 1"),
        ({"rule": "best"}, ConfigError, "unknown rule 'best'"),
        ({"depth": 3}, ConfigError, "no option depth"),
        ({"orders": np.zeros((4, 2), dtype=np.int64)}, UsageError, "no permutation"),
        ({"orders": np.zeros((4, 3), dtype=np.int64)}, UsageError, "need no"),
        ({"rule": "fixed", "orders": np.zeros((4, 2), dtype=np.int64)}, UsageError, "permutation"),
        ({"layers": ["a"]}, UsageError, "table of parameters"),
        ({"normalise_layers": True}, UsageError, "table of parameters"),
    ],
)
def test_wrong_input_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        order_offline(**{"gradients": np.zeros((4, 2, 3), dtype=np.float32), **change})



from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from hvdgrab.balance import herding_bound, herding_bound_stream, relative_bound
from hvdgrab.balance.bounds import random_orders as drawn_orders
from hvdgrab.balance.reference import prefix_bound
from hvdgrab.compression import build_compressor
from hvdgrab.errors import UsageError
from tests.balance.data import coordinated_pass, random_gradients, random_orders


@pytest.mark.parametrize(("ranks", "n", "d"), [(1, 1, 1), (1, 9, 4), (3, 10, 7), (4, 5, 0), (2, 700, 200), (2, 3, 70_000)])
def test_equals_the_definition(ranks, n, d):
    gradients, orders = random_gradients(ranks, n, d), random_orders(ranks, n)
    assert herding_bound(gradients, orders) == pytest.approx(prefix_bound(gradients, orders), rel=1e-9)


def test_torch_and_numpy_agree():
    gradients, orders = random_gradients(2, 30, 5), random_orders(2, 30)
    tensors = torch.from_numpy(gradients)
    expected = herding_bound(gradients, orders)
    assert herding_bound(tensors, torch.from_numpy(orders)) == expected
    assert herding_bound(tensors.requires_grad_(), orders) == expected
    rounded = tensors.detach().bfloat16()
    assert herding_bound(rounded, orders) == herding_bound(rounded.float().numpy(), orders)


def test_no_units_and_equal_gradients_have_bound_zero():
    assert herding_bound(np.zeros((2, 0, 3)), np.zeros((2, 0), dtype=np.int64)) == (0.0, 0.0)
    assert herding_bound(np.full((2, 8, 3), 0.5), random_orders(2, 8)) == (0.0, 0.0)


def test_sums_are_double_precision():
    """In float32 the small steps would vanish beside the large one."""
    gradients = np.array([[[2.0**30], [-(2.0**30)], [1.0], [-1.0]]], dtype=np.float32)
    assert herding_bound(gradients, np.array([[2, 0, 1, 3]]))[0] == 2.0**30 + 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_makes_the_bound_unknown(bad):
    gradients = random_gradients(2, 6, 3)
    gradients[1, 2, 0] = bad
    assert np.isnan(herding_bound(gradients, random_orders(2, 6))).all()


def test_working_memory_does_not_grow_with_the_number_of_units():
    def peak(n: int) -> int:
        gradients, orders = random_gradients(2, n, 64), random_orders(2, n)
        tracemalloc.start()
        herding_bound(gradients, orders)
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size - 40 * orders.size  # integers: the orders and their counts

    assert peak(16_384) < 1.5 * peak(2_048)


def test_streamed_vectors_equal_stored_ones_and_are_not_kept():
    gradients, orders = random_gradients(3, 20, 6), random_orders(3, 20)
    buffer, asked = np.empty(6, dtype=np.float32), []

    def fetch(rank: int, unit: int) -> np.ndarray:
        asked.append((rank, unit))
        buffer[:] = gradients[rank, unit]
        return buffer

    assert herding_bound_stream(fetch, orders, 6) == pytest.approx(herding_bound(gradients, orders), rel=1e-12)
    assert sorted(asked) == sorted(2 * [(rank, unit) for rank in range(3) for unit in range(20)])


def test_compressed_vectors_are_expanded_on_the_fly():
    """The bound of what PairBalance saw; beside the exact one it is off by the compression alone."""
    gradients, orders = random_gradients(2, 16, 300), random_orders(2, 16)
    compressor = build_compressor("int8")
    payloads = [[compressor.compress(torch.from_numpy(vector)) for vector in rank] for rank in gradients]
    seen = np.array([[compressor.expand(payload).numpy() for payload in rank] for rank in payloads])
    bound = herding_bound_stream(lambda rank, unit: compressor.expand(payloads[rank][unit]), orders, 300)
    assert bound == pytest.approx(herding_bound(seen, orders), rel=1e-12)
    assert bound == pytest.approx(herding_bound(gradients, orders), rel=0.02)


def test_streaming_needs_memory_for_a_few_vectors_only():
    def fetch(rank: int, unit: int) -> np.ndarray:
        return np.random.default_rng([rank, unit]).random(2**15, dtype=np.float32)

    orders = random_orders(2, 40)  # 10 MB in all
    tracemalloc.start()
    herding_bound_stream(fetch, orders, 2**15)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 4 * 2**15


def test_fetched_vectors_of_another_shape_are_refused():
    with pytest.raises(UsageError, match=r"fetch\(0, 0\) must return a vector of shape \(3,\), not \(2,\)"):
        herding_bound_stream(lambda rank, unit: np.zeros(2), np.array([[0, 1]]), 3)
    with pytest.raises(UsageError, match=r"\(W, n\)"):
        herding_bound_stream(lambda rank, unit: np.zeros(2), np.array([0, 1]), 2)


def test_relative_bounds_are_over_the_mean_of_random_orders():
    gradients, orders = random_gradients(2, 50, 5), np.tile(np.arange(50), (2, 1))
    result = relative_bound(gradients, orders, randoms=3, seed=7)
    drawn = [herding_bound(gradients, drawn_orders(2, 50, 7, draw)) for draw in range(3)]
    assert (result.l2, result.linf) == herding_bound(gradients, orders)
    assert result.l2_vs_random == pytest.approx(result.l2 / np.mean([l2 for l2, _ in drawn]))
    assert result.linf_vs_random == pytest.approx(result.linf / np.mean([linf for _, linf in drawn]))
    assert not np.array_equal(drawn_orders(2, 50, 7, 0), drawn_orders(2, 50, 7, 1))
    assert np.isnan(relative_bound(np.zeros((1, 3, 2)), np.arange(3)[None]).l2_vs_random)
    with pytest.raises(UsageError, match="at least 1 random order"):
        relative_bound(gradients, orders, randoms=0)


@pytest.mark.parametrize(
    ("gradients", "orders", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3), dtype=np.int64), r"\(W, n, d\)"),
        (np.zeros((2, 3, 1)), np.zeros((3, 2), dtype=np.int64), r"\(W, n, d\)"),
        (np.zeros((1, 3, 1)), np.array([[0, 1, 1]]), "rank 0 is no permutation"),
        (np.zeros((1, 2, 1)), np.array([[0.0, 1.0]]), "integers"),
        ([[[0.0]]], np.array([[0]]), "not list"),
    ],
)
def test_wrong_input_is_refused(gradients, orders, message):
    with pytest.raises(UsageError, match=message):
        herding_bound(gradients, orders)


def test_balance_beats_random_orders_after_each_of_the_first_passes():
    gradients = random_gradients(4, 200, 32)
    orders = random_orders(4, 200)
    random = np.mean([herding_bound(gradients, random_orders(4, 200, seed=s))[0] for s in range(1, 9)])
    relative = []
    for _ in range(10):
        orders = coordinated_pass(gradients, orders)
        relative.append(herding_bound(gradients, orders)[0] / random)
    assert relative[0] < 0.85
    assert relative[-1] < 0.5

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from hvdgrab.balance import herding_bound
from hvdgrab.balance.reference import prefix_bound
from hvdgrab.errors import UsageError
from tests.balance.data import coordinated_pass, independent_pass, paper_vectors, random_gradients, random_orders


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


TOTAL, PASSES = 20_000, 15


@pytest.mark.parametrize(("ranks", "independent_range"), [(5, (4.0, 8.0)), (20, (9.0, 17.0))])
def test_the_papers_table_of_random_vectors(ranks, independent_range):
    """Figure 10 of arXiv 2302.00845 at N = 20,000: coordinated stays at about 2.5 for any W, independent grows with sqrt(W)."""
    gradients = paper_vectors(TOTAL, 16, seed=1).reshape(ranks, TOTAL // ranks, 16)
    start = together = alone = random_orders(ranks, TOTAL // ranks)
    after: list[float] = [herding_bound(gradients, start)[1]]
    for _ in range(PASSES):
        together, alone = coordinated_pass(gradients, together), independent_pass(gradients, alone)
        after.append(herding_bound(gradients, together)[1])
    assert after[0] > 30
    assert after[1] < 0.65 * after[0]
    assert after[2] < 0.65 * after[1]
    assert after[-1] < 3.5
    assert independent_range[0] < herding_bound(gradients, alone)[1] < independent_range[1]
    assert herding_bound(gradients, alone)[1] > 1.4 * after[-1]


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

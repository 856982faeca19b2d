from __future__ import annotations

import numpy as np
import pytest
import torch

from hvdgrab.balance import BoundExact, BoundSketch, herding_bound
from hvdgrab.balance.reference import prefix_bound
from hvdgrab.compression import FoldSketch
from hvdgrab.errors import UsageError
from tests.balance.data import coordinated_pass, random_gradients, random_orders

WIDTH = 256


def sketches(orders: np.ndarray, fold=None, **more) -> list[BoundSketch]:
    fold = fold or FoldSketch(WIDTH, seed=5).fold
    return [
        BoundSketch(len(order), order=order, epoch=2, seed=7, rank=rank, fold=fold, **more) for rank, order in enumerate(orders)
    ]


def exacts(orders: np.ndarray, d: int, **more) -> list[BoundExact]:
    return [BoundExact(len(order), d, order=order, epoch=2, seed=7, rank=rank, **more) for rank, order in enumerate(orders)]


def run(meters, gradients: np.ndarray, orders: np.ndarray, *, seen: int | None = None):
    """Feed the units of every rank in their order; the summed buffer."""
    tensors = torch.from_numpy(gradients)
    for w, meter in enumerate(meters):
        for position, unit in enumerate(orders[w][:seen]):
            meter.add(position, int(unit), tensors[w, unit])
    return np.sum([meter.buffer for meter in meters], axis=0)


def drifting(ranks: int, n: int, d: int, seed: int = 0) -> np.ndarray:
    """Gradients with a large mean, as real ones have."""
    return random_gradients(ranks, n, d, seed) + np.float32(3) * random_gradients(1, 1, d, seed + 100)


@pytest.mark.parametrize("n", [1, 2, 3, 17])
def test_exact_meter_equals_the_bound_of_the_stored_gradients(n):
    gradients, orders = drifting(3, n, 11), random_orders(3, n)
    meters = exacts(orders, 11)
    result = meters[0].result(run(meters, gradients, orders), size=3)
    l2, linf = herding_bound(gradients, orders)
    assert result.l2 == pytest.approx(l2, rel=1e-4, abs=1e-4)
    assert result.linf == pytest.approx(linf, rel=1e-4, abs=1e-4)


def test_exact_ratio_is_against_random_orders_of_the_same_gradients():
    gradients, orders = drifting(2, 60, 9), random_orders(2, 60)
    meters = exacts(orders, 9, randoms=64)
    ratio = meters[0].result(run(meters, gradients, orders)).l2_vs_random
    random = np.mean([prefix_bound(gradients, random_orders(2, 60, seed=s))[0] for s in range(1, 65)])
    assert ratio == pytest.approx(herding_bound(gradients, orders)[0] / random, rel=0.1)


def at_slot_ends(gradients: np.ndarray, orders: np.ndarray, bins: int) -> float:
    """The exact l2 bound over the prefixes that end where a slot ends."""
    ranks, n, _ = gradients.shape
    vectors = gradients.astype(np.float64)
    vectors -= vectors.mean(axis=(0, 1))
    prefixes = np.cumsum(vectors[np.arange(ranks)[:, None], orders].sum(axis=0), axis=0)
    ends = [p for p in range(n) if p == n - 1 or p * bins // n != (p + 1) * bins // n]
    return float(np.linalg.norm(prefixes[ends], axis=1).max())


@pytest.mark.parametrize("n", [3, 64, 65, 300])
@pytest.mark.parametrize("d", [1000, 5000])
def test_sketched_bound_is_near_the_exact_one(n, d):
    """Width 256: one estimate has a relative error of sqrt(2 / 256) / 2 = 4.4 %; the largest of 64 within 15 %."""
    gradients, orders = drifting(2, n, d, seed=n), random_orders(2, n)
    meters = sketches(orders)
    result = meters[0].result(run(meters, gradients, orders), size=2)
    assert result.l2 == pytest.approx(at_slot_ends(gradients, orders, min(64, n)), rel=0.15)
    assert result.linf is None


def test_squared_estimates_are_unbiased():
    """Mean over 60 seeds of the squared estimate of one prefix: standard error sqrt(2 / 256 / 60) = 1.1 %."""
    gradients, orders = random_gradients(1, 2, 20_000), np.array([[0, 1]])
    exact = herding_bound(gradients, orders)[0] ** 2
    squares = []
    for seed in range(60):
        meters = sketches(orders, fold=FoldSketch(WIDTH, seed).fold)
        squares.append(meters[0].result(run(meters, gradients, orders)).l2 ** 2)
    assert np.mean(squares) == pytest.approx(exact, rel=0.05)


def test_sketch_sees_what_balancing_gains():
    """The ratio after five passes: what the exact meter says, within 20 %, and far below 1."""
    spread = random_gradients(1, 64, 2000, seed=9)[0] / np.float32(np.sqrt(2000))
    gradients, orders = drifting(3, 256, 64) @ spread, random_orders(3, 256)
    for _ in range(5):
        orders = coordinated_pass(gradients, orders)
    rough, exact = sketches(orders), exacts(orders, 2000)
    estimate = rough[0].result(run(rough, gradients, orders)).l2_vs_random
    truth = exact[0].result(run(exact, gradients, orders)).l2_vs_random
    assert estimate == pytest.approx(truth, rel=0.2)
    assert truth < 0.6


def test_buffers_have_the_size_they_promise():
    orders = random_orders(1, 500)
    assert sketches(orders)[0].buffer.shape == (5, 64, WIDTH + 1)
    assert sketches(orders)[0].buffer.dtype == np.float32
    assert sketches(random_orders(1, 10))[0].buffer.shape == (5, 10, WIDTH + 1)
    assert exacts(orders, 7, randoms=2)[0].buffer.shape == (3, 500, 8)


def test_ranks_draw_their_own_random_orders_and_all_sum_to_the_same_total():
    gradients, orders = drifting(2, 40, 30), np.tile(np.arange(40), (2, 1))
    gradients[1] = gradients[0]
    meters = exacts(orders, 30)
    run(meters, gradients, orders)
    first, second = (meter.buffer for meter in meters)
    assert np.array_equal(first[0], second[0])
    assert not np.allclose(first[1], second[1])
    for row in first[1:]:
        assert np.allclose(row.sum(axis=0), first[0].sum(axis=0), rtol=1e-4, atol=1e-3)


def test_an_epoch_left_early_is_measured_over_what_was_seen():
    """Without counts the missing units would appear as a drift of the mean."""
    gradients, orders = drifting(2, 40, 30), random_orders(2, 40)
    meters = exacts(orders, 30)
    result = meters[0].result(run(meters, gradients, orders, seen=25), size=2)
    seen = np.array([gradients[w, orders[w, :25]] for w in range(2)])
    assert result.l2 == pytest.approx(prefix_bound(seen, np.tile(np.arange(25), (2, 1)))[0], rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_that_are_folded_already_give_the_same_sums(dtype):
    gradients, orders, fold = drifting(2, 30, 400), random_orders(2, 30), FoldSketch(WIDTH, seed=5).fold
    meters = sketches(orders, fold=fold)
    expected = run(meters, gradients, orders)
    folded = np.array([[fold(torch.from_numpy(vector)).numpy() for vector in rank] for rank in gradients]).astype(dtype)
    common = {"epoch": 2, "seed": 7, "fold": None}
    for tensors in (False, True):
        given = [BoundSketch(30, order=order, rank=rank, **common) for rank, order in enumerate(orders)]
        for w, meter in enumerate(given):
            for position, unit in enumerate(orders[w]):
                meter.add(position, int(unit), torch.from_numpy(folded[w, unit]) if tensors else folded[w, unit])
        assert np.array_equal(np.sum([meter.buffer for meter in given], axis=0), expected)
    with pytest.raises(UsageError, match=r"256 values, not shape \(400,\)"):
        given[0].add(0, int(orders[0, 0]), gradients[0, 0])


def test_a_vector_whose_square_overflows_is_still_finite():
    meter = exacts(np.array([[0, 1]]), 3)[0]
    meter.add(0, 0, np.array([3e38, 0, 1e30], dtype=np.float32))
    meter.add(1, 1, np.array([np.inf, 0, 0], dtype=np.float32))
    assert meter.skipped == 1
    assert meter.buffer[0, :, -1].tolist() == [1, 0]


def test_added_vectors_are_not_kept():
    meter, vector = exacts(np.array([[0, 1]]), 2)[0], np.ones(2, dtype=np.float32)
    meter.add(0, 0, vector)
    vector[:] = 5
    meter.add(1, 1, vector)
    assert meter.buffer[0].tolist() == [[1, 1, 1], [5, 5, 1]]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_skipped_and_counted(bad):
    gradients, orders = drifting(1, 20, 300), np.arange(20)[None]
    for meter in (sketches(orders)[0], exacts(orders, 300)[0]):
        spoilt = torch.from_numpy(gradients[0].copy())
        spoilt[7, 0] = bad
        for unit in range(20):
            meter.add(unit, unit, spoilt[unit])
        assert meter.skipped == 1
        assert np.isfinite(meter.buffer).all()
        assert meter.buffer[0, :, -1].sum() == 19
        assert meter.result(meter.buffer).l2 is not None


def test_nothing_seen_or_nothing_random_is_unknown():
    orders = random_orders(1, 8)
    nothing = sketches(orders)[0]
    assert nothing.result(nothing.buffer) == (None, None, None)
    alone = exacts(orders, 3, randoms=0)
    result = alone[0].result(run(alone, random_gradients(1, 8, 3), orders))
    assert result.l2 is not None
    assert result.l2_vs_random is None


def test_all_zero_gradients_have_bound_zero_and_no_ratio():
    orders = random_orders(2, 8)
    meters = exacts(orders, 3)
    assert meters[0].result(run(meters, np.zeros((2, 8, 3), dtype=np.float32), orders)) == (0.0, 0.0, None)


def test_a_sum_that_overflowed_is_unknown():
    orders = random_orders(1, 8)
    meter = exacts(orders, 3)[0]
    summed = run([meter], random_gradients(1, 8, 3), orders)
    summed[0, 3, 0] = np.inf
    assert meter.result(summed) == (None, None, None)


def test_half_precision_gradients_are_taken():
    orders = np.arange(4)[None]
    for meter in (sketches(orders)[0], exacts(orders, 5)[0]):
        meter.add(0, 0, torch.ones(5, dtype=torch.bfloat16, requires_grad=True))
        assert meter.buffer[0, 0, -1] == 1


def test_misuse_is_refused():
    meter = exacts(np.array([[2, 0, 1]]), 4)[0]
    with pytest.raises(UsageError, match="unit 0 is not at position 0"):
        meter.add(0, 0, torch.zeros(4))
    with pytest.raises(UsageError, match="position 3"):
        meter.add(3, 0, torch.zeros(4))
    with pytest.raises(UsageError, match=r"4 values, not shape \(5,\)"):
        meter.add(0, 2, torch.zeros(5))
    with pytest.raises(UsageError, match="summed buffer"):
        meter.result(np.zeros((1, 2, 3), dtype=np.float32))
    for _ in range(4):
        meter.add(0, 2, torch.zeros(4))
    with pytest.raises(UsageError, match="added twice"):
        meter.result(meter.buffer, size=1)
    with pytest.raises(UsageError, match="shape"):
        BoundExact(4, 2, order=np.arange(3), epoch=0, seed=0, rank=0)
    with pytest.raises(UsageError, match="bins >= 1"):
        sketches(np.arange(3)[None], bins=0)

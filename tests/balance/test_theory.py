"""What the theory promises, as figures: the bound of balanced orders hardly grows with n, nor with the number of ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hvdgrab.balance import herding_bound, order_offline
from hvdgrab.balance.offline import Pass
from hvdgrab.bench import herding

SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
SEEDS = 4
PASSES = 10


@pytest.fixture(scope="module")
def slopes() -> np.ndarray:
    """Slope of log l2 bound against log n, after 0 … 10 passes over n vectors in 16 dimensions."""
    logs = np.zeros((PASSES + 1, len(SIZES)))
    for size, n in enumerate(SIZES):
        for seed in range(SEEDS):
            passes: list[Pass] = []
            order_offline(herding.vectors(n, seed=100 * n + seed), PASSES, seed=seed, on_pass=passes.append)
            logs[:, size] += np.log([report.l2 for report in passes]) / SEEDS
    return np.polyfit(np.log(SIZES), logs.T, 1)[0]


def test_the_bound_of_random_orders_grows_with_the_square_root_of_n(slopes):
    assert slopes[0] == pytest.approx(0.5, abs=0.08)


def test_one_pass_still_grows_nearly_so(slopes):
    assert slopes[1] == pytest.approx(0.46, abs=0.08)


def test_ten_passes_make_it_hardly_grow(slopes):
    """Measured: 0.06."""
    assert slopes[PASSES] <= 0.12


@pytest.mark.parametrize(("ranks", "independent"), [(5, (4.5, 7.0)), (100, (16.0, np.inf))])
def test_the_papers_table_of_random_vectors(ranks, independent):
    """Figure 10 of arXiv 2302.00845 at N = 100,000: coordinated stays small for any W, independent grows with sqrt(W)."""
    (row,) = herding.study(100_000, [ranks], seed=1)
    assert row["vectors"] == 100_000
    assert row["coordinated"] <= 3.0
    assert independent[0] <= row["independent"] <= independent[1]
    assert row["random"] >= 90


def test_each_of_the_first_coordinated_passes_halves_the_bound():
    passes: list[Pass] = []
    gradients = herding.vectors(20_000, seed=1).reshape(20, 1_000, 16)
    orders = order_offline(gradients, 3, on_pass=passes.append)
    for before, after in pairwise(passes):
        assert after.linf < 0.65 * before.linf
    assert herding_bound(gradients, orders)[1] == pytest.approx(passes[-1].linf)

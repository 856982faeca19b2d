"""The one-process study: coordinated ordering must help where the theory says so."""

from __future__ import annotations

import os

import numpy as np
import pytest

from hvdgrab.bench import simulate
from hvdgrab.bench.convergence import measure
from hvdgrab.bench.one_process import Simulation
from hvdgrab.bench.runs import SIMULATED, Site, Variant
from tests.real import find_mpirun, need_horovod


@pytest.fixture(scope="module")
def studies() -> dict[tuple[str, int], simulate.Study]:
    return {(order, seed): simulate.simulate(order, seed, epochs=7) for order in ("rr", "cd-grab") for seed in (0, 1)}


def test_orders_of_one_seed_share_their_first_epoch(studies: dict[tuple[str, int], simulate.Study]) -> None:
    for seed in (0, 1):
        assert studies["rr", seed].full_loss[0] == studies["cd-grab", seed].full_loss[0]
    assert studies["rr", 0].full_loss[0] != studies["rr", 1].full_loss[0]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("epoch", [4, 7])
def test_coordinated_orders_learn_faster(studies: dict[tuple[str, int], simulate.Study], seed: int, epoch: int) -> None:
    assert studies["cd-grab", seed].full_loss[epoch - 1] < studies["rr", seed].full_loss[epoch - 1]


@pytest.mark.parametrize("seed", [0, 1])
def test_coordinated_orders_keep_the_bound_small(studies: dict[tuple[str, int], simulate.Study], seed: int) -> None:
    # Even rr's own order is below 1: each step answers the ones before it, which shuffled gradients do not.
    assert np.mean(studies["cd-grab", seed].bound_vs_random[2:]) < 0.75 * np.mean(studies["rr", seed].bound_vs_random[2:])


def test_gradients_are_those_of_finite_differences() -> None:
    rng = np.random.default_rng(0)
    inputs, targets, weights = rng.normal(size=(2, 5)), np.array([3, 7]), rng.normal(size=(10, 5))
    gradient, loss = simulate._gradient(inputs, targets, weights)
    for row, column in ((3, 0), (7, 4), (1, 2)):
        moved = weights.copy()
        moved[row, column] += 1e-6
        assert (simulate._gradient(inputs, targets, moved)[1] - loss) / 1e-6 == pytest.approx(gradient[row, column], abs=1e-4)


@pytest.mark.parametrize("order", SIMULATED)
def test_every_order_runs(order: str) -> None:
    study = simulate.simulate(order, 0, epochs=2)
    assert len(study.full_loss) == len(study.bound_vs_random) == 2
    assert study.full_loss[1] < study.full_loss[0] < 2.3


def test_simulated_ranks_train_as_real_ones_do() -> None:
    """Two real ranks under mpirun and two in one process: the same losses, epoch after epoch, hence the same orders."""
    find_mpirun()
    need_horovod()
    simulated = Simulation("digits", Variant("cd-grab", "none"), 3, ranks=2, limit=64, batch_size=4).run(3)
    site = Site(2, oversubscribe=True, allow_root=os.geteuid() == 0, timeout=300)
    real = measure(site, "digits", Variant("cd-grab", "none"), 3, ["--limit", "64", "--batch-size", "4", "--epochs", "3"])
    assert simulated.full_loss == pytest.approx(real.full_loss, rel=1e-4)
    assert simulated.train_loss == pytest.approx(real.train_loss, rel=1e-4)
    # The sketches number the coordinates differently, so the estimates differ by their noise.
    assert simulated.bound_vs_random == pytest.approx(real.bound_vs_random, rel=0.2)

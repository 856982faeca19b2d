"""Coordinators on the gradients of a network that trains on real data: rounding differs between them, their bounds hardly do."""

from __future__ import annotations

import numpy as np
import pytest

from hvdgrab.bench.gradients import Gradients, collect
from tests.coordinator.checks import COORDINATORS
from tests.coordinator.simulate import Rank, simulate

RANKS, UNITS, EPOCHS = 4, 40, 6


@pytest.fixture(scope="module")
def digits():
    with collect("digits", RANKS, UNITS) as gradients:
        yield gradients


def bounds(digits: Gradients, **settings: object) -> list[float]:
    """Of every epoch's orders, relative to random ones."""

    def work(rank: Rank) -> list[list[list[int]]]:
        orders = []
        for _ in range(EPOCHS):
            rank.epoch()
            orders.append(rank.book.orders.tolist())
        return orders

    orders = simulate(np.asarray(digits.values), work, timeout=300.0, bound="off", **settings)
    assert all(one == orders[0] for one in orders)
    random = digits.random_bound()
    return [digits.bound(np.array(one)) / random for one in orders[0]]


def test_all_coordinators_reach_the_same_bound(digits):
    reached = {name: float(np.mean(bounds(digits, coordinator=name)[1:])) for name in COORDINATORS}
    assert reached["designated"] < 0.9, reached
    for name, bound in reached.items():
        assert bound == pytest.approx(reached["designated"], rel=0.02), (name, reached)

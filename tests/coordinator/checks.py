"""What every coordinator must do, as functions of one rank; run by threads, by mpirun on one host and on several.

A check is given a maker of sessions, and everything that it returns must be equal on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.reference import coordinated_epoch, coordinated_signs, prefix_bound
from tests.coordinator.simulate import Rank

Make = Callable[..., Rank]
"""Makes this rank's session over gradients (W, n, d), with the settings given."""
COORDINATORS = ("designated", "replicated", "sharded", "server")
EPOCHS = 3


def whole_numbers(ranks: int, units: int, dimension: int = 37, seed: int = 0) -> NDArray[np.float32]:
    """Gradients whose sums and products float32 forms without rounding."""
    return np.random.default_rng(seed).integers(-20, 21, (ranks, units, dimension)).astype(np.float32)


def literal_orders(gradients: NDArray[np.float32], first: NDArray[np.int64], epochs: int = EPOCHS) -> list[list[list[int]]]:
    """Orders (W, n) of every epoch, by the literal algorithm in this process."""
    orders = [np.array(first)]
    for _ in range(epochs - 1):
        orders.append(np.array(coordinated_epoch(gradients, orders[-1])))
    return [one.tolist() for one in orders]


def follow(rank: Rank, epochs: int = EPOCHS) -> list[list[list[int]]]:
    """Run epochs; all ranks' orders of each, of which this rank's are what it saw."""
    orders = []
    for _ in range(epochs):
        seen = rank.epoch()
        orders.append(rank.book.orders.tolist())
        assert seen == orders[-1][rank.book.rank]
    return orders


def orders_are_those_of_the_reference(size: int, make: Make) -> Any:
    results = []
    for units, room in ((1, 1), (3, 1), (10, 3)):
        gradients = whole_numbers(size, units, seed=units)
        rank = make(gradients, pairs_per_message=room)
        orders = follow(rank)
        assert orders == literal_orders(gradients, np.array(orders[0]))
        results.append(orders)
        rank.session.close()
    return results


def fewer_values_than_ranks(size: int, make: Make) -> Any:
    gradients = whole_numbers(size, 8, dimension=1)
    orders = follow(make(gradients))
    assert orders == literal_orders(gradients, np.array(orders[0]))
    return orders


def a_pair_that_is_not_finite_is_dropped(size: int, make: Make) -> Any:
    gradients = whole_numbers(size, 10)
    gradients[-1, 4, 2], gradients[0, 7, 36] = np.nan, np.inf
    rank = make(gradients, pairs_per_message=2)
    orders = follow(rank, 2)
    expected = coordinated_signs(gradients, np.array(orders[0]))
    assert 1 <= expected.dropped <= 2
    assert orders == literal_orders(gradients, np.array(orders[0]), 2)
    rank.session.close()
    if rank.journal.last is not None:
        assert rank.journal.last.pairs_dropped == expected.dropped
    return orders


def units_without_gradients_and_epochs_left_early(size: int, make: Make) -> Any:
    rank = make(whole_numbers(size, 12))
    for number, (_, unit) in enumerate(rank.units()):
        rank.give(None if number in (3, 8) else unit)
    rank.epoch(stop_after=7)
    last = rank.epoch()
    assert sorted(last) == list(range(12))
    return rank.book.orders.tolist()


def random_sign_rules_and_damping(size: int, make: Make) -> Any:
    results = []
    for balance in ({"sign_rule": "walk"}, {"sign_rule": "halving", "damping": 0.5}, {"carry_over": True}, {"precision": "fp64"}):
        rank = make(whole_numbers(size, 9), balance=balance, pairs_per_message=2)
        results.append(follow(rank, 3))
        rank.session.close()
    return results


def every_second_epoch(size: int, make: Make) -> Any:
    gradients = whole_numbers(size, 8)
    rank = make(gradients, reorder={"every": 2, "first": 1, "last": 4})
    orders = follow(rank, 7)
    assert orders[1] == orders[0], "epoch 0 is not coordinated"
    assert orders[2] == coordinated_epoch(gradients, np.array(orders[1])).tolist()
    assert orders[3] == orders[2]
    assert orders[4] == coordinated_epoch(gradients, np.array(orders[3])).tolist()
    assert orders[6] == orders[5] == orders[4], "none after epoch 4"
    rank.session.close()
    if rank.journal.last is not None:
        assert rank.journal.last.pairs == 0
        assert rank.journal.last.bytes_sent == 0
    return orders


def a_slow_rank_changes_nothing_but_time(size: int, make: Make) -> Any:
    gradients = whole_numbers(size, 20)
    rank = make(gradients, pairs_per_message=2)
    for _ in range(2):
        for number, (_, unit) in enumerate(rank.units()):
            if rank.book.rank == size - 1 and number % 10 == 9:
                time.sleep(0.1)
            rank.give(unit)
    last = rank.epoch()
    orders = rank.book.orders.tolist()
    assert last == orders[rank.book.rank]
    first = make(gradients).book.orders
    assert orders == literal_orders(gradients, first, 3)[-1]
    return orders


def real_numbers_are_balanced_as_well(size: int, make: Make) -> Any:
    """Rounding may change signs, never how well they balance."""
    gradients = np.random.default_rng(5).standard_normal((size, 24, 300)).astype(np.float32)
    orders = follow(make(gradients), 6)
    reached = prefix_bound(gradients, np.array(orders[-1]))[0]
    expected = prefix_bound(gradients, np.array(literal_orders(gradients, np.array(orders[0]), 6)[-1]))[0]
    assert reached <= 1.2 * expected
    return orders


CHECKS = [
    orders_are_those_of_the_reference,
    fewer_values_than_ranks,
    a_pair_that_is_not_finite_is_dropped,
    units_without_gradients_and_epochs_left_early,
    random_sign_rules_and_damping,
    every_second_epoch,
    a_slow_rank_changes_nothing_but_time,
    real_numbers_are_balanced_as_well,
]

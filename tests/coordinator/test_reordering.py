from __future__ import annotations

import numpy as np
import pytest

from hvdgrab.balance import build_rule
from hvdgrab.comm.communicator import SerialCommunicator
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.ending import Reordering
from tests.coordinator.simulate import Rank, simulate
from tests.coordinator.test_session import random_gradients


def epochs_of(count: int = 12, **settings: object) -> list[int]:
    reordering = Reordering(GraBConfig(reorder=settings))
    return [epoch for epoch in range(count) if reordering.coordinates(epoch)]


def test_epochs_that_are_coordinated():
    assert epochs_of() == list(range(12))
    assert epochs_of(every=5) == [0, 5, 10]
    assert epochs_of(every=3, first=2) == [2, 5, 8, 11]
    assert epochs_of(every=4, first=1, last=9) == [1, 5, 9]
    assert epochs_of(first=3, last=3) == [3]


def watched(bounds: list[float | None]) -> list[bool]:
    """Whether each epoch is coordinated, given the bounds of those before it."""
    reordering = Reordering(GraBConfig(reorder={"while_falling": True}))
    coordinated = []
    for epoch, bound in enumerate(bounds):
        coordinated.append(reordering.coordinates(epoch))
        reordering.judge(SerialCommunicator(), bound, coordinated[-1])
    return coordinated


def test_the_ranks_rest_when_the_bound_no_longer_falls_and_go_on_when_the_order_is_stale():
    assert watched([1.0, 0.8, 0.7, 0.699, 0.7, 0.7]) == [True] * 5 + [False]
    assert watched([1.0, 0.7, 0.7, 0.6, 0.6, 0.5]) == [True] * 6, "one epoch without a fall is none yet"
    assert watched([0.7, 0.7, 0.7, 0.76, 0.78, 0.78]) == [True, True, True, False, False, True]
    assert watched([0.7, None, 0.7, None, 0.7, 0.7]) == [True] * 5 + [False], "an epoch whose bound is unknown does not count"


def test_a_watched_bound_goes_on_from_what_was_saved():
    first, second = (Reordering(GraBConfig(reorder={"while_falling": True})) for _ in range(2))
    for bound in (0.7, 0.7, 0.7):
        assert first.coordinates(0)
        first.judge(SerialCommunicator(), bound, coordinated=True)
    second.restore(first.saved())
    assert not second.coordinates(3)
    second.restore(None)
    assert second.coordinates(3)


def test_resting_ranks_keep_their_orders_and_send_no_pairs():
    """Gradients that never change: after some epochs there is nothing left to gain."""

    def work(rank: Rank) -> list[tuple[list[list[int]], int]]:
        seen = []
        for _ in range(25):
            rank.epoch()
            orders = rank.book.orders.tolist()
            rank.session.saved_state()  # waits for the end of the epoch
            seen.append((orders, rank.session._phase.outcome.result().facts.pairs))
        return seen

    results = simulate(random_gradients(2, 12), work, reorder={"while_falling": True})
    assert results[0] == results[1]
    pairs = [count for _, count in results[0]]
    assert set(pairs) == {0, 12}
    for (before, count), (after, _) in zip(results[0], results[0][1:], strict=False):
        assert count or before == after
        assert before != after or not count


@pytest.mark.parametrize("order", ["rr", "flipflop"])
def test_orders_made_from_a_seed_come_every_epoch(order):
    plain = simulate(random_gradients(2, 6), lambda rank: [rank.epoch() for _ in range(4)], order=order)
    assert plain == simulate(random_gradients(2, 6), lambda rank: [rank.epoch() for _ in range(4)], order=order, reorder=3)


@pytest.mark.parametrize("order", ["grab", "recursive"])
def test_rules_of_one_rank_rest_too(order):
    gradients = random_gradients(1, 9)
    (seen,) = simulate(gradients, lambda rank: [rank.epoch() for _ in range(5)], order=order, reorder=2)
    assert seen[1] == seen[2]
    assert seen[3] == seen[4]
    rule = build_rule(order, n=9, d=7, order=np.array(seen[0]))
    for number in (0, 2):
        for unit in seen[number]:
            rule.add(gradients[0, unit])
        assert rule.next_order().tolist() == seen[number + 1]


def test_debug_prints_the_first_ten_units_of_every_rank_and_epoch(capsys):
    def work(rank: Rank) -> list[int]:
        return [*rank.epoch()[:10], *rank.epoch()[:10]]

    results = simulate(random_gradients(2, 12), work, debug=True, reorder=2)
    said = capsys.readouterr().err
    for rank, seen in enumerate(results):
        for epoch, kept in ((0, ""), (1, ", kept for the next epoch")):
            units = " ".join(map(str, seen[10 * epoch : 10 * epoch + 10]))
            assert f"hvdgrab: rank {rank}, epoch {epoch}: the order begins {units}{kept}\n" in said

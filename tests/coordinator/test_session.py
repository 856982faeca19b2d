from __future__ import annotations

import itertools

import numpy as np
import pytest

from hvdgrab.balance import build_rule, herding_bound, next_order
from hvdgrab.balance.reference import coordinated_epoch, coordinated_signs, prefix_bound
from hvdgrab.comm.simulated import run_ranks
from hvdgrab.compression.payload import HEADER_BYTES
from hvdgrab.config import ORDERS, SINGLE_RANK_ORDERS, GraBConfig
from hvdgrab.errors import CommunicationError, ConsistencyError, StateError, UsageError
from tests.coordinator.simulate import Rank, simulate

EPOCHS = 4
SHAPES = list(itertools.product((1, 2, 3, 4), (1, 2, 3, 10, 11)))


def random_gradients(ranks: int, units: int, dimension: int = 7, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ranks, units, dimension)).astype(np.float32)


def run_epochs(rank: Rank) -> list[list[int]]:
    return [rank.epoch() for _ in range(EPOCHS)]


def literal_orders(gradients: np.ndarray, first: np.ndarray) -> list[np.ndarray]:
    """Orders (W, n) of every epoch, by the literal algorithm in this process."""
    orders = [first]
    for _ in range(EPOCHS - 1):
        orders.append(np.array(coordinated_epoch(gradients, orders[-1])))
    return orders


@pytest.mark.parametrize(("ranks", "units"), SHAPES)
@pytest.mark.parametrize("pairs_per_message", [1, 3])
def test_orders_equal_the_literal_reference(ranks, units, pairs_per_message):
    gradients = random_gradients(ranks, units)
    seen = simulate(gradients, run_epochs, order="cd-grab", pairs_per_message=pairs_per_message)
    expected = literal_orders(gradients, np.array([one[0] for one in seen]))
    for epoch, order in enumerate(expected):
        assert [one[epoch] for one in seen] == order.tolist(), f"epoch {epoch}"


@pytest.mark.parametrize("designated_rank", [0, 1, 2])
def test_any_rank_can_be_the_designated_one(designated_rank):
    gradients = random_gradients(3, 8)
    seen = simulate(gradients, run_epochs, designated_rank=designated_rank)
    expected = literal_orders(gradients, np.array([one[0] for one in seen]))
    assert [one[-1] for one in seen] == expected[-1].tolist()


@pytest.mark.parametrize(("ranks", "units"), [(1, 10), (2, 11), (4, 3)])
def test_independent_ranks_each_follow_the_reference_alone(ranks, units):
    gradients = random_gradients(ranks, units)
    seen = simulate(gradients, run_epochs, order="id-grab")
    for rank in range(ranks):
        alone = literal_orders(gradients[rank : rank + 1], np.array([seen[rank][0]]))
        assert seen[rank] == [order[0].tolist() for order in alone]


def test_all_zero_gradients_and_duplicates_tie_to_plus_one():
    same = np.broadcast_to(random_gradients(1, 1), (2, 6, 7)).copy()
    for gradients in (np.zeros((2, 6, 7), dtype=np.float32), same):
        for first, *rest in simulate(gradients, run_epochs):
            ties = [np.array(first)]
            for order in rest:
                ties.append(next_order(ties[-1], np.ones(3, dtype=np.int8)))
                assert order == ties[-1].tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_pair_of_one_rank_is_dropped_counted_and_said(bad, capfd):
    gradients = random_gradients(3, 10)
    gradients[1, 4, 2] = bad

    def work(rank: Rank) -> tuple[list[list[int]], object]:
        seen = [rank.epoch(), rank.epoch()]
        rank.session.close()
        return seen, rank.journal.last

    results = simulate(gradients, work)
    first = np.array([seen[0] for seen, _ in results])
    expected = coordinated_signs(gradients, first)
    assert expected.dropped == 1
    assert [seen[1] for seen, _ in results] == coordinated_epoch(gradients, first).tolist()
    record = results[0][1]
    assert (record.pairs, record.pairs_dropped) == (15, 1)
    assert capfd.readouterr().err.count("hvdgrab: epoch 0: 1 of 15 pairs of gradients were not finite") == 1


@pytest.mark.parametrize("order", [order for order in ORDERS if order not in SINGLE_RANK_ORDERS])
def test_every_epoch_of_every_order_is_a_permutation(order):
    for seen in simulate(random_gradients(2, 9), run_epochs, order=order):
        assert all(sorted(units) == list(range(9)) for units in seen)


@pytest.mark.parametrize("order", SINGLE_RANK_ORDERS)
def test_rules_of_one_rank_order_it_and_are_refused_on_more(order):
    gradients = random_gradients(1, 9)
    ((first, *rest),) = simulate(gradients, run_epochs, order=order)
    rule = build_rule(order, n=9, d=7, order=np.array(first))
    previous = first
    for following in rest:
        for unit in previous:
            rule.add(gradients[0, unit])
        previous = rule.next_order().tolist()
        assert following == previous
    with pytest.raises(UsageError, match=f"'{order}' orders a single rank, but there are 2"):
        simulate(random_gradients(2, 4), run_epochs, order=order)


def test_epochs_left_early_fill_the_free_slots_with_unseen_units():
    gradients = random_gradients(2, 10)

    def work(rank: Rank) -> list[list[int]]:
        return [rank.book.order.tolist(), rank.epoch(stop_after=5), rank.epoch()]

    results = simulate(gradients, work)
    orders = np.array([one[0] for one in results])
    signs = coordinated_signs(gradients, orders, seen=[5, 5]).signs
    for rank, (order, partial, following) in enumerate(results):
        assert partial == order[:5]
        assert following == next_order(np.array(order), signs[rank, :2]).tolist()
        assert following[2:-2] == order[4:], "units without a pair keep their order in the middle"


def test_a_rank_that_leaves_an_epoch_alone_ends_the_job_with_names():
    def work(rank: Rank) -> None:
        rank.epoch(stop_after=4 if rank.communicator.rank == 1 else None)
        rank.epoch()

    places = "not at the same place: rank 0 is in epoch 0 after unit 6; rank 1 {} epoch 0 after unit 4"
    with pytest.raises(ConsistencyError, match=places.format("ended")):
        simulate(random_gradients(2, 6), work, pairs_per_message=1)
    with pytest.raises(ConsistencyError, match=places.format("is in")):
        simulate(random_gradients(2, 6), work)


def test_a_rank_that_waits_says_for_whom_and_gives_up(capsys):
    def work(rank: Rank) -> None:
        rank.epoch(stop_after=2)
        if rank.communicator.rank == 1:
            rank.epoch()
        rank.session.close(finish=False)

    waits = "rank 1, epoch 0, after 2 of 6 units: waits for the end of epoch 0, .* missing: rank 0"
    with pytest.raises(CommunicationError, match=waits):
        simulate(random_gradients(2, 6), work, stall_warning=0.1, stall_timeout=0.3)
    assert "0 s so far; missing: rank 0" in capsys.readouterr().err


def test_skipped_units_have_no_sign_and_stay_in_the_middle():
    gradients = random_gradients(1, 6)

    def work(rank: Rank) -> tuple[list[int], list[int]]:
        order = []
        for number, (_, unit) in enumerate(rank.units()):
            rank.give(None if number == 3 else unit)
            order.append(unit)
        return order, rank.epoch()

    ((order, following),) = simulate(gradients, work)
    assert [following[1], following[4]] == order[2:4], "the pair of the skipped unit fills the free slots"


def test_batches_without_a_backward_pass_are_reported(capsys):
    gradients = random_gradients(1, 6)

    def work(rank: Rank) -> None:
        for number, (_, unit) in enumerate(rank.units()):
            if number != 3:
                rank.give(unit)
        rank.epoch()

    simulate(gradients, work)
    assert "1 of the 6 batches of epoch 0 had no backward pass" in capsys.readouterr().err


def test_the_bound_is_unknown_where_most_gradients_are_not_finite():
    gradients = random_gradients(2, 8)
    gradients[:, 1:] = np.nan

    def work(rank: Rank) -> object:
        rank.epoch()
        rank.session.close()
        return rank.journal.last

    record = simulate(gradients, work)[0]
    assert (record.herding_l2, record.herding_l2_vs_random) == (None, None)


def test_the_bound_is_measured_exactly_where_asked():
    gradients = random_gradients(2, 12)

    def work(rank: Rank) -> object:
        orders = rank.book.orders.copy()
        rank.epoch()
        rank.session.close()
        return orders, rank.journal.last

    (orders, record), _ = simulate(gradients, work, bound="exact")
    l2, linf = prefix_bound(gradients, orders)
    assert herding_bound(gradients, orders) == pytest.approx((l2, linf), rel=1e-5)
    assert (record.herding_l2, record.herding_linf) == pytest.approx((l2, linf), rel=1e-4)
    assert record.herding_l2_vs_random > 0


def test_coordination_lowers_the_bound_below_random_and_below_independent():
    gradients = random_gradients(4, 64, dimension=16)

    def work(rank: Rank) -> float | None:
        for _ in range(8):
            rank.epoch()
        rank.session.close()
        return None if rank.journal.last is None else rank.journal.last.herding_l2_vs_random

    relative = {order: simulate(gradients, work, order=order, bound="exact")[0] for order in ("rr", "id-grab", "cd-grab")}
    assert relative["cd-grab"] < 0.7 * relative["id-grab"], relative
    assert relative["id-grab"] < 0.8 * relative["rr"], relative


def test_bytes_are_those_of_the_messages():
    def work(rank: Rank) -> object:
        rank.epoch()
        rank.session.close()
        return rank.journal.last

    record = simulate(random_gradients(3, 10, dimension=100), work)[0]
    payloads, sign_bits = 2 * 5 * (HEADER_BYTES + 400), 2 * -(-15 // 8)
    assert record.bytes_sent == payloads + sign_bits
    assert record.bytes_dense == 3 * 5 * 400


@pytest.mark.parametrize("name", ["examples", "units", "dealing", "parameters"])
def test_ranks_that_are_not_one_job_are_named_at_the_first_unit(name):
    def on_rank(communicator):
        rank = Rank(communicator, GraBConfig(), random_gradients(1, 4)[0])
        if communicator.rank == 2:
            rank.facts[name] = "other"
            rank.session.facts[name] = "other"
        rank.epoch()

    with pytest.raises(ConsistencyError, match=f"{name}: other on rank 2, but .* on rank 0; every rank must"):
        run_ranks(3, on_rank)


SAVE_AFTER = [0, 1, 2, 3, 6, 7]


@pytest.mark.parametrize("order", ["cd-grab", "id-grab", "rr", "reshuffle"])
@pytest.mark.parametrize("pairs_per_message", [1, 2])
@pytest.mark.parametrize("saved_after", SAVE_AFTER)
def test_a_run_resumed_on_every_rank_equals_the_uninterrupted_one(order, pairs_per_message, saved_after):
    gradients = random_gradients(3, 7)
    settings = {"order": order, "pairs_per_message": pairs_per_message}
    whole = simulate(gradients, run_epochs, **settings)

    def first_half(rank: Rank) -> tuple[list[int], object]:
        seen = rank.epoch()
        if saved_after:
            seen = rank.epoch(stop_after=saved_after)
        state = rank.session.saved_state()
        rank.session.close(finish=False)
        return seen, state

    halves = simulate(gradients, first_half, **settings)

    def second_half(rank: Rank) -> list[list[int]]:
        rank.session.restore(halves[rank.communicator.rank][1])
        rest = rank.epoch() if saved_after < 7 and saved_after else []
        seen = halves[rank.communicator.rank][0] + rest if saved_after else rank.epoch()
        return [seen, rank.epoch(), rank.epoch()]

    resumed = simulate(gradients, second_half, **settings)
    assert resumed == [one[1:] for one in whole]


@pytest.mark.parametrize("pairs_per_message", [1, 3])
@pytest.mark.parametrize("saved_after", [2, 3, 4, 7])
def test_rank_0_alone_brings_the_state_to_all_at_the_first_unit(saved_after, pairs_per_message):
    gradients = random_gradients(3, 7)
    settings = {"pairs_per_message": pairs_per_message}
    whole = simulate(gradients, run_epochs, **settings)

    def first_half(rank: Rank) -> object:
        rank.epoch()
        rank.epoch(stop_after=saved_after)
        state = rank.session.saved_state()
        rank.session.close(finish=False)
        return state

    state = simulate(gradients, first_half, **settings)[0]

    def second_half(rank: Rank) -> list[list[int]]:
        if rank.communicator.rank == 0:
            rank.session.restore(state)
        rest = rank.epoch()
        return [rest, rank.epoch()]

    resumed = simulate(gradients, second_half, **settings)
    assert resumed[0][0] == (whole[0][1][saved_after:] or whole[0][2]), "rank 0 goes on where it was"
    if saved_after == 7:  # rank 0 begins epoch 2, so do the others, but for the unit that was on its way
        assert all(sorted(one[0]) == list(range(7)) for one in resumed)
    for rank in (1, 2):
        assert len(resumed[rank][0]) == len(resumed[0][0]), "every rank makes as many backward passes"
        assert sorted(resumed[rank][1]) == list(range(7))


def test_a_state_of_another_run_is_refused_with_both_values():
    state = simulate(random_gradients(2, 6), lambda rank: rank.session.saved_state())[0]

    def restore(rank: Rank) -> None:
        rank.session.restore(state)

    with pytest.raises(StateError, match="number of ranks is 2, here it is 3"):
        simulate(random_gradients(3, 6), restore)
    with pytest.raises(StateError, match="units per rank is 6, here it is 8"):
        simulate(random_gradients(2, 8), restore)
    with pytest.raises(StateError, match="order is 'cd-grab', here it is 'rr'"):
        simulate(random_gradients(2, 6), restore, order="rr")
    with pytest.raises(StateError, match="seed is 0, here it is 5"):
        simulate(random_gradients(2, 6), restore, seed=5)


def test_closing_twice_and_closing_unused_are_harmless():
    def work(rank: Rank) -> None:
        rank.epoch()
        assert rank.session.close()
        assert rank.session.close()

    simulate(random_gradients(2, 4), work)
    simulate(random_gradients(2, 4), lambda rank: None)


def test_the_data_can_be_looked_at_after_closing():
    def work(rank: Rank) -> list[list[int]]:
        rank.epoch()
        rank.session.close()
        return [[unit for _, unit in rank.units()] for _ in range(2)]

    for first, second in simulate(random_gradients(2, 5), work):
        assert first == second
        assert sorted(first) == list(range(5))


def test_nothing_can_be_ordered_after_closing():
    def work(rank: Rank) -> None:
        rank.epoch(stop_after=2)
        rank.session.close(finish=False)
        rank.epoch()

    with pytest.raises(CommunicationError, match="closed"):
        simulate(random_gradients(1, 4), work)

"""Every coordinator's state, saved in the middle of an epoch and between two, continues the run bit for bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from hvdgrab.coordinator.saved import SavedState
from hvdgrab.errors import StateError
from tests.coordinator.checks import COORDINATORS
from tests.coordinator.simulate import Rank, simulate
from tests.coordinator.test_session import random_gradients

UNITS, EPOCHS = 9, 4


def stored(state: SavedState) -> SavedState:
    """As a checkpoint brings it back."""
    file = io.BytesIO()
    torch.save(state.to_dict(), file)
    return SavedState.from_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))


def whole_run(gradients: np.ndarray, **settings: Any) -> list[list[list[int]]]:
    return simulate(gradients, lambda rank: [rank.epoch() for _ in range(EPOCHS)], **settings)


def save(gradients: np.ndarray, after: int, **settings: Any) -> list[SavedState]:
    def work(rank: Rank) -> SavedState:
        rank.epoch()
        rank.epoch(stop_after=after)
        state = stored(rank.session.saved_state())
        rank.session.close(finish=False)
        return state

    return simulate(gradients, work, **settings)


@pytest.mark.parametrize("coordinator", [*COORDINATORS, "independent"])
@pytest.mark.parametrize("after", [3, 6, 9])
@pytest.mark.parametrize("more", [{}, {"balance": {"carry_over": True}}, {"reorder": {"every": 2, "first": 1}}], ids=str)
def test_a_run_resumed_on_every_rank_equals_the_uninterrupted_one(coordinator, after, more):
    gradients = random_gradients(3, UNITS)
    settings = {"coordinator": coordinator, "pairs_per_message": 2, **more}
    whole = whole_run(gradients, **settings)
    states = save(gradients, after, **settings)

    def go_on(rank: Rank) -> list[int]:
        rank.session.restore(states[rank.communicator.rank])
        return [unit for _ in range(3 if after < UNITS else 2) for unit in rank.epoch()]

    resumed = simulate(gradients, go_on, **settings)
    assert resumed == [sum(one[1:], [])[after:] for one in whole]


@pytest.mark.parametrize("coordinator", ["designated", "replicated", "server"])
def test_rank_0s_state_is_enough_where_it_holds_the_whole_sum(coordinator):
    gradients = random_gradients(3, UNITS)
    state = save(gradients, 4, coordinator=coordinator, pairs_per_message=1)[0]
    whole = whole_run(gradients, coordinator=coordinator, pairs_per_message=1)

    def go_on(rank: Rank) -> list[list[int]]:
        rank.session.restore(state)
        return [rank.epoch(), rank.epoch()]

    assert simulate(gradients, go_on, coordinator=coordinator, pairs_per_message=1) == [[one[1][4:], one[2]] for one in whole]


def test_one_part_of_a_sharded_sum_is_not_taken_for_the_sum(capsys):
    gradients = random_gradients(3, UNITS)
    state = save(gradients, 4, coordinator="sharded")[0]

    def go_on(rank: Rank) -> list[list[int]]:
        if rank.communicator.rank == 0:
            rank.session.restore(state)
        return [rank.epoch(), rank.epoch()]

    results = simulate(gradients, go_on, coordinator="sharded")
    assert all(sorted(one[1]) == list(range(UNITS)) for one in results)
    assert "goes on after unit 4 with a sum of zero" in capsys.readouterr().err


def test_another_coordinator_may_take_over_between_two_epochs_only():
    gradients = random_gradients(2, UNITS)
    middle, end = save(gradients, 4)[0], save(gradients, UNITS)[0]
    with pytest.raises(StateError, match="way to balance and compress is .* keep these settings until the epoch is over"):
        simulate(gradients, lambda rank: rank.session.restore(middle), coordinator="sharded")

    def go_on(rank: Rank) -> list[int]:
        rank.session.restore(end)
        return rank.epoch()

    whole = whole_run(gradients)
    for coordinator in ("replicated", "sharded", "server"):
        assert simulate(gradients, go_on, coordinator=coordinator) == [one[2] for one in whole]


def test_states_of_the_version_before_are_read():
    old = save(random_gradients(1, UNITS), 4)[0].to_dict()
    assert old.pop("reordering") is not None
    read = SavedState.from_dict({**old, "version": 2})
    assert (read.reordering, read.position) == (None, 4)
    with pytest.raises(StateError, match="version 1, this release reads version 2 or 3"):
        SavedState.from_dict({**old, "version": 1})

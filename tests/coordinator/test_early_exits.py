"""Ranks that leave an epoch early, and those that hang in Horovod for their gradients: no message compares them."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from hvdgrab.comm import worker
from hvdgrab.comm.simulated import ThreadCommunicator, thread_world
from hvdgrab.coordinator.early_exits import EarlyExits, Progress
from hvdgrab.errors import ConsistencyError
from tests.coordinator.simulate import Rank, simulate


class Heard(ThreadCommunicator):
    """Counts the looks of its rank, and those since a notice was read."""

    looks: threading.Semaphore
    since: threading.Semaphore
    heard: bool

    def notices(self) -> list[tuple[int, np.ndarray]]:
        arrived = super().notices()
        self.looks.release()
        if arrived or self.heard:
            self.heard = True
            self.since.release()
        return arrived

    @classmethod
    def watch(cls, communicator: ThreadCommunicator) -> Heard:
        communicator.__class__ = cls
        communicator.looks, communicator.since = threading.Semaphore(0), threading.Semaphore(0)
        communicator.heard = False
        return communicator


def many(semaphore: threading.Semaphore) -> bool:
    return all(semaphore.acquire(timeout=20) for _ in range(3))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(worker, "UNHEARD_SECONDS", 0.1)


@pytest.fixture
def pair() -> tuple[list[ThreadCommunicator], EarlyExits]:
    """Three ranks' communicators, and what rank 0 knows: it is in epoch 1, the second that it has begun, after 4 units."""
    own = EarlyExits(0)
    own.begin(0, 0)
    own.begin(1, 0)
    own.reach(4)
    return thread_world(3), own


def leave(communicator: ThreadCommunicator, *progress: int) -> None:
    communicator.notify(Progress(*progress).row())


@pytest.mark.parametrize("place", [(2, 1, 4), (2, 1, 5), (1, 0, 2), (1, 1, 2), (3, 2, 1), (3, 1, 1), (2, 0, 1)])
def test_a_rank_that_left_at_the_same_place_or_ahead_or_in_another_epoch_is_fine(pair, place):
    world, own = pair
    leave(world[1], *place)
    own.look(world[0])
    own.look(world[0])


def test_ranks_that_left_earlier_are_named_in_the_words_of_unequal_messages(pair):
    world, own = pair
    leave(world[2], 2, 1, 2)
    leave(world[1], 2, 1, 3)
    places = "rank 0 is in epoch 1 after unit 4; rank 1 ended epoch 1 after unit 3; rank 2 ended epoch 1 after unit 2. Every"
    with pytest.raises(ConsistencyError, match=f"the ranks are not at the same place: {places}"):
        own.look(world[0])


def test_a_notice_is_kept_until_its_unit_and_its_epoch_have_come(pair):
    world, own = pair
    leave(world[1], 2, 1, 5)
    leave(world[2], 3, 2, 1)
    for unit in (4, 5):
        own.reach(unit)
        own.look(world[0])
    own.begin(2, 0)
    own.look(world[0])
    own.reach(2)
    with pytest.raises(ConsistencyError, match="rank 0 is in epoch 2 after unit 2; rank 2 ended epoch 2 after unit 1"):
        own.look(world[0])


def test_a_restored_epoch_is_not_the_one_that_was_left(pair):
    world, own = pair
    leave(world[1], 2, 1, 4)
    own.look(world[0])
    own.begin(1, 0)
    own.reach(6)
    own.look(world[0])


def test_a_rank_between_two_epochs_reads_nothing(pair):
    world, own = pair
    assert own.end() == (2, 1, 4)
    leave(world[1], 2, 1, 3)
    own.look(world[0])
    assert len(world[0].notices()) == 1


def test_a_watch_does_not_keep_what_it_watches_alive():
    world, own = thread_world(2), EarlyExits(0)
    own.begin(0, 0)
    own.reach(2)
    look = own.weak_look()
    leave(world[1], 1, 0, 1)
    del own
    gc.collect()
    look(world[0])
    assert len(world[0].notices()) == 1


def random_gradients(ranks: int, units: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ranks, units, 5)).astype(np.float32)


def stuck(rank: Rank, after: int) -> None:
    """Hang in Horovod after some units; raises what ends the job."""
    rank.epoch(stop_after=after)
    assert rank.told.wait(20), "nobody noticed"
    raise rank.unheard[0]


@pytest.mark.parametrize("order", ["cd-grab", "id-grab", "rr"])
@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("how", ["next epoch", "close"])
def test_a_rank_that_leaves_alone_is_named_though_the_others_hang(order, leaver, how):
    def work(rank: Rank) -> None:
        rank.epoch()
        if rank.communicator.rank != leaver:
            stuck(rank, 6)
        rank.epoch(stop_after=5)
        if how == "close":
            rank.session.close(timeout=20.0)
        rank.epoch()

    places = [f"rank {r} {'ended' if r == leaver else 'is in'} epoch 1 after unit {5 + (r != leaver)}" for r in (0, 1)]
    with pytest.raises(ConsistencyError, match=f"the ranks are not at the same place: {'; '.join(places)}. Every rank must"):
        simulate(random_gradients(2, 8), work, order=order)


def test_messages_that_wait_for_others_do_not_hold_a_notice_up():
    """The rank that leaves has finished pairs to send first, to a rank that has no message to answer with."""

    def work(rank: Rank) -> None:
        if rank.communicator.rank == 0:
            rank.epoch(stop_after=2 * 3 + 1)
            rank.epoch()
        stuck(rank, 2 * 3 + 2)

    with pytest.raises(ConsistencyError, match="rank 0 ended epoch 0 after unit 7; rank 1 is in epoch 0 after unit 8"):
        simulate(random_gradients(2, 80), work)


def test_ranks_that_all_leave_after_the_same_unit_go_on_however_late():
    """Rank 0 hears of rank 1's end before it comes there itself, is there for a while, then leaves."""
    left = threading.Event()

    def work(rank: Rank) -> list[Any]:
        communicator = Heard.watch(rank.communicator)
        seen = [rank.epoch()]
        if communicator.rank == 1:
            seen.append(rank.epoch(stop_after=5))
            left.set()
            return [*seen, rank.epoch(), rank.epoch(stop_after=6), rank.epoch()]
        units = rank.units()
        part = []
        for number in range(5):
            unit = next(units)[1]
            if number == 3:
                assert left.wait(20)
                assert many(communicator.since), "it knows that rank 1 has left, while it is at unit 3"
            rank.give(unit)
            part.append(unit)
        assert many(communicator.looks), "and looks while it is at unit 5"
        seen.append(part)
        whole = rank.epoch()
        assert rank.unheard == []
        return [*seen, whole, rank.epoch(stop_after=6), rank.epoch()]

    for seen in simulate(random_gradients(2, 8), work):
        assert [len(units) for units in seen] == [8, 5, 8, 6, 8]


def test_an_epoch_restored_after_it_was_left_early_may_be_seen_to_its_end():
    def work(rank: Rank) -> int:
        communicator = Heard.watch(rank.communicator)
        rank.epoch()
        state = rank.session.saved_state()
        rank.epoch(stop_after=3)
        rank.epoch(stop_after=2)
        rank.session.restore(state)
        seen = rank.epoch(stop_after=6)
        assert many(communicator.looks)
        assert rank.session.error is None
        return len(seen + rank.epoch())

    assert simulate(random_gradients(2, 8), work) == [14, 14]


def test_notices_of_epochs_that_are_left_early_do_not_pile_up():
    def work(rank: Rank) -> tuple[int, int]:
        for _ in range(5):
            rank.epoch(stop_after=3)
        rank.epoch()
        rank.session.close()
        return len(rank.session._exits._heard), len(rank.communicator.notices())

    for kept, unread in simulate(random_gradients(2, 6), work):
        assert kept <= 1
        assert unread == 0

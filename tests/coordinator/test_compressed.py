"""Compressed differences between simulated ranks: every kind orders as its expanded payloads say; damage is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hvdgrab.comm.communicator import Buffer
from hvdgrab.comm.simulated import ThreadCommunicator
from hvdgrab.compression.payload import HEADER_BYTES
from hvdgrab.config import GraBConfig
from hvdgrab.errors import ConfigError, PayloadError, StateError
from tests.coordinator.simulate import Rank, simulate
from tests.coordinator.test_session import EPOCHS, literal_orders, random_gradients, run_epochs

KINDS: list[Any] = ["none", "fp16", "bf16", "int8", {"kind": "topk", "k": 3}, {"kind": "sketch", "width": 5, "dtype": "fp32"}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("order", ["cd-grab", "id-grab"])
def test_whole_numbers_that_survive_are_ordered_as_the_reference_does(kind, order):
    """Differences of three small whole numbers: every kind but the sketch carries them exactly, and the sketch folds them."""
    gradients = np.zeros((3, 10, 40), dtype=np.float32)
    gradients[:, :, :3] = np.random.default_rng(1).integers(-60, 60, (3, 10, 3))
    seen = simulate(gradients, run_epochs, compression=kind, order=order)
    vectors = gradients
    if isinstance(kind, dict) and kind["kind"] == "sketch":
        projected = simulate(gradients, project_all, compression=kind, order=order)
        vectors = np.stack(projected)
    if order == "cd-grab":
        expected = literal_orders(vectors, np.array([one[0] for one in seen]))
        assert [one[-1] for one in seen] == expected[-1].tolist()
        return
    for rank in range(3):
        alone = literal_orders(vectors[rank : rank + 1], np.array([seen[rank][0]]))
        assert seen[rank][-1] == alone[-1][0].tolist()


def project_all(rank: Rank) -> np.ndarray:
    projection = rank.session.parts.views.projection
    assert projection is not None
    return np.stack([projection.fold(torch.from_numpy(gradient)).numpy() for gradient in rank.gradients])


def test_bytes_on_the_wire_are_those_of_the_sketch():
    def work(rank: Rank) -> object:
        rank.epoch()
        rank.session.close()
        return rank.journal.last

    record = simulate(random_gradients(3, 10, dimension=5000), work, compression="sketch")[0]
    sign_bits = 2 * -(-15 // 8)
    payload = (record.bytes_sent - sign_bits) / (2 * 5)
    assert 4096 + HEADER_BYTES <= payload <= 4096 + HEADER_BYTES + 64
    assert record.bytes_dense == 3 * 5 * 4 * 5000


class Flips(ThreadCommunicator):
    """Rank 1's wire: one bit of its second payload arrives the other way round."""

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        if send.dtype == np.uint8 and self.rank == 1 and send.ndim == 2:
            send = send.copy()
            send[1, 50] ^= 4
        super().gather(send, receive, root)


@pytest.mark.parametrize("kind", ["none", "topk", "sketch"])
def test_a_bit_that_flips_on_the_wire_stops_the_job_with_the_rank_named(kind):
    def work(rank: Rank) -> None:
        rank.communicator.__class__ = Flips
        rank.epoch()
        rank.epoch()

    with pytest.raises(PayloadError, match="what rank 1 sent for pair 1 of epoch 0 cannot be used: a damaged payload"):
        simulate(random_gradients(2, 10, dimension=300), work, compression=kind)


def test_messages_hold_as_many_pairs_as_fit():
    def room(rank: Rank) -> int:
        return rank.session.parts.format.room

    assert simulate(random_gradients(1, 100), room, compression="sketch") == [15]
    assert simulate(random_gradients(1, 8), room, compression="sketch") == [4]
    assert simulate(random_gradients(1, 100, dimension=100_000), room) == [1]
    assert simulate(random_gradients(1, 100), room) == [16]
    assert simulate(random_gradients(1, 100), room, pairs_per_message=33) == [33]


def test_a_state_with_another_compression_is_refused_in_the_middle_of_an_epoch_and_taken_at_its_end():
    gradients = random_gradients(1, 8)

    def save(stop: int) -> Any:
        def work(rank: Rank) -> Any:
            rank.epoch(stop_after=stop)
            return rank.session.saved_state()

        return simulate(gradients, work, compression="sketch")[0]

    middle, end = save(4), save(8)
    with pytest.raises(StateError, match="way to balance and compress"):
        simulate(gradients, lambda rank: rank.session.restore(middle), compression="topk")

    def go_on(rank: Rank) -> list[int]:
        rank.session.restore(end)
        return rank.epoch()

    assert sorted(simulate(gradients, go_on, compression="topk")[0]) == list(range(8))
    defaults = {"kind": "sketch", "width": 4096, "dtype": "int8"}
    simulate(gradients, lambda rank: rank.session.restore(middle), compression=defaults)  # spelled out


@pytest.mark.parametrize("more", [{"order": "grab"}, {"balance": {"carry_over": True}}])
def test_sums_of_another_compression_start_anew_at_the_end_of_an_epoch(more, capsys):
    gradients = random_gradients(1, 8)

    def save(rank: Rank) -> Any:
        rank.epoch()
        return rank.session.saved_state()

    state = simulate(gradients, save, compression="sketch", **more)[0]

    def go_on(rank: Rank) -> list[int]:
        rank.session.restore(state)
        return rank.epoch()

    assert sorted(simulate(gradients, go_on, compression="none", **more)[0]) == list(range(8))
    assert "sums and means start anew" in capsys.readouterr().err


def test_options_of_another_kind_are_refused():
    with pytest.raises(ConfigError, match="compression kind 'topk' has no option width; it takes ratio, k, dtype"):
        GraBConfig.resolve(None, compression={"kind": "topk", "width": 7})
    assert GraBConfig(compression="topk") == GraBConfig(compression={"kind": "topk"})


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_random_jobs_of_every_kind_end_with_permutations_and_resume_exactly(seed):
    random = np.random.default_rng(seed)
    ranks, units, d = int(random.integers(1, 5)), int(random.integers(1, 14)), int(random.integers(1, 300))
    kind = ["none", "fp16", "bf16", "int8", {"kind": "topk", "ratio": 0.3}, {"kind": "sketch", "width": 33}][seed % 6]
    rule = ["greedy", "walk", "halving"][seed % 3]
    room = [None, 1, 3][seed % 3]
    balance = {"sign_rule": rule, "damping": [1.0, 0.9][seed % 2], "carry_over": seed % 4 == 0}
    settings = {"compression": kind, "balance": balance, "pairs_per_message": room}
    gradients = random_gradients(ranks, units, d, seed)
    whole = simulate(gradients, run_epochs, **settings)
    assert all(sorted(epoch) == list(range(units)) for rank in whole for epoch in rank)
    stop = int(random.integers(0, units + 1))

    def first_half(rank: Rank) -> Any:
        rank.epoch()
        if stop:
            rank.epoch(stop_after=stop)
        state = rank.session.saved_state()
        rank.session.close(finish=False)
        return state

    states = simulate(gradients, first_half, **settings)

    def second_half(rank: Rank) -> list[list[int]]:
        rank.session.restore(states[rank.communicator.rank])
        return [rank.epoch() for _ in range(EPOCHS - (2 if 0 < stop < units else 1 if not stop else 2))]

    resumed = simulate(gradients, second_half, **settings)
    for before, after in zip(whole, resumed, strict=True):
        expected = before[1:] if not stop else [before[1][stop:], *before[2:]] if stop < units else before[2:]
        assert after == expected[: len(after)]

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvdgrab.comm.simulated import ThreadCommunicator
from hvdgrab.coordinator.payloads import BalancingDevice
from hvdgrab.errors import ConsistencyError
from tests.coordinator.simulate import Rank, simulate
from tests.coordinator.test_session import literal_orders, random_gradients


def test_rank_0s_signs_count_and_ranks_that_decide_otherwise_are_named(monkeypatch, capsys):
    """Rank 2 rounds differently: its third sign of every epoch comes out the other way round."""
    feed, odd = BalancingDevice.feed, []

    def rounds_differently(self: BalancingDevice, rows: Any) -> Any:
        signs, dropped = feed(self, rows)
        if any(self is one for one in odd):
            signs = signs.copy()
            signs[2] *= -1
        return signs, dropped

    monkeypatch.setattr(BalancingDevice, "feed", rounds_differently)
    gradients = random_gradients(3, 10)

    def work(rank: Rank) -> list[list[int]]:
        if rank.communicator.rank == 2:
            odd.append(rank.session.parts.coordinator._device)
        return [rank.epoch() for _ in range(3)]

    seen = simulate(gradients, work, coordinator="replicated", pairs_per_message=16)
    expected = literal_orders(gradients, np.array([one[0] for one in seen]))
    assert [one[2] for one in seen] == expected[2].tolist()
    said = capsys.readouterr().err
    for epoch in (0, 1):
        assert f"rank 2 decided 1 of the 15 signs of epoch {epoch} otherwise than rank 0, whose signs count" in said
    assert "rank 1 decided" not in said


class Forgets(ThreadCommunicator):
    """Rank 1 hears other signs at the end of an epoch than rank 0 sent."""

    def broadcast(self, buffer: Any, root: int) -> None:
        super().broadcast(buffer, root)
        if self.rank == 1 and buffer.dtype == np.uint8 and buffer.size == 4:
            buffer[0] ^= 128


def test_ranks_that_make_other_orders_are_named_before_anyone_follows_them():
    def work(rank: Rank) -> None:
        rank.communicator.__class__ = Forgets
        rank.epoch()
        rank.epoch()

    with pytest.raises(ConsistencyError, match="rank 1 made other orders for epoch 1 than rank 0"):
        simulate(random_gradients(3, 20), work, coordinator="replicated")

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvdgrab.balance.meters import BoundSketch
from hvdgrab.coordinator.book import Place
from hvdgrab.coordinator.epoch import LateMeter
from hvdgrab.coordinator.gradient import Arrival, host_memory
from hvdgrab.coordinator.pairing import PairBuffer

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.mark.parametrize("device", DEVICES)
def test_what_arrives_is_what_was_there_when_the_copy_was_asked_for(device):
    target = host_memory(3, device=torch.device(device))
    result = torch.arange(3.0, device=device)
    arrival = Arrival(target, result)
    result.zero_()
    assert arrival.wait().tolist() == [0.0, 1.0, 2.0]
    assert arrival.wait().data_ptr() == target.data_ptr()


@pytest.mark.parametrize("device", DEVICES)
def test_a_late_meter_ends_with_what_a_punctual_one_holds(device):
    order = np.random.default_rng(0).permutation(9)
    settings = {"order": order, "epoch": 0, "seed": 1, "rank": 0, "fold": None, "width": 4, "bins": 3}
    punctual, late = BoundSketch(9, **settings), LateMeter(BoundSketch(9, **settings), 4, torch.device(device))
    shared = torch.zeros(4, device=device)
    for position, unit in enumerate(order.tolist()):
        values = torch.randn(4, generator=torch.Generator().manual_seed(position))
        punctual.add(position, unit, values)
        shared.copy_(values)  # the memory is used again
        late.add(Place(position, unit), shared)
    assert np.array_equal(late.finish().buffer, punctual.buffer)


class Elsewhere(PairBuffer):
    """A pair buffer whose vectors come from another device, as far as a host can play one."""

    def __init__(self, *args, **more) -> None:
        super().__init__(*args, **more)
        self._away = torch.zeros(self._differences.shape[2])


@pytest.mark.parametrize("kind", [PairBuffer, Elsewhere])
def test_pairs_from_a_device_are_those_of_the_host_and_can_be_saved_between(kind):
    sent: list[tuple[int, np.ndarray]] = []

    def send(batch):
        if batch is not None:
            batch.arrived()
            sent.append((batch.first, batch.differences.copy()))

    vectors = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    buffer = kind(3, 2)
    buffer.begin()
    for position in range(10):
        saved = buffer.unsent()
        other = kind(3, 2)
        other.resume(position, saved)
        assert torch.equal(other.unsent(), saved)
        buffer = other
        send(buffer.add(torch.from_numpy(vectors[position])))
    send(buffer.flush())
    assert [first for first, _ in sent] == [0, 2, 4]
    assert np.array_equal(np.concatenate([rows for _, rows in sent]), vectors[::2] - vectors[1::2])

from __future__ import annotations

import numpy as np
import pytest

from hvdgrab.comm.serial import SerialCommunicator
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.channel import Channel
from hvdgrab.errors import CommunicationError


class Book:
    rank, epoch, position, n = 1, 2, 3, 8


@pytest.fixture
def channel():
    config = GraBConfig(stall_warning=2, stall_timeout=9)
    made = Channel(config, Book(), SerialCommunicator, lambda error: None, lambda comm: None)
    yield made
    made.close(1.0)


def test_a_long_wait_for_averages_is_said_every_so_often(channel, capsys):
    for tenth in range(60):
        channel.waits_for_averages(tenth / 10)
    channel.waits_for_averages(0.1)
    channel.waits_for_averages(2.1)
    said = capsys.readouterr().err.splitlines()
    assert [line.split(" s so far")[0].rsplit(" ", 1)[1] for line in said] == ["2", "4", "2"]
    assert all("rank 1, epoch 2, after 3 of 8 units" in line for line in said)


def test_a_wait_that_is_too_long_ends_it(channel):
    with pytest.raises(CommunicationError, match="stall_timeout is reached"):
        channel.waits_for_averages(9.0)


def test_what_ended_the_communication_is_heard_while_waiting(channel):
    def fail(communicator):
        raise ValueError("a rank has left")

    with pytest.raises(ValueError, match="left"):
        channel.submit(fail).result(10)
    with pytest.raises(ValueError, match="left"):
        for _ in range(1000):
            channel.waits_for_averages(float(np.float64(0.1)))

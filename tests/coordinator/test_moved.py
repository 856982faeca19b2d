"""A running sum that was moved to where the vectors lie: a tensor, whose states and signs are those of the array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.config import BalanceConfig

ROWS = np.random.default_rng(0).integers(-9, 10, (20, 5)).astype(np.float32)


def moved(**settings: Any) -> PairBalancer:
    made = PairBalancer(5, BalanceConfig(backend="torch", **settings), seed=1)
    made.move(torch.device("cpu"))
    return made


@pytest.mark.parametrize("settings", [{}, {"precision": "fp64"}, {"sign_rule": "walk"}, {"carry_over": True}], ids=str)
def test_it_balances_saves_and_restores_as_an_array_does(settings):
    plain, first, second = PairBalancer(5, BalanceConfig(**settings), seed=1), moved(**settings), moved(**settings)
    expected = plain.feed(ROWS)[0]
    begun = first.feed(torch.from_numpy(ROWS[:10]))[0]
    state = first.state_dict()
    assert isinstance(state["running_sum"], np.ndarray)
    second.load_state_dict(state)
    ended = second.feed(torch.from_numpy(ROWS[10:]))[0]
    assert [*begun, *ended] == expected.tolist()
    assert isinstance(second.running_sum, torch.Tensor)
    assert np.array_equal(second.running_sum.numpy(), plain.running_sum)
    second.begin_epoch()
    assert bool(second.running_sum.any()) == settings.get("carry_over", False)

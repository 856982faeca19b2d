from __future__ import annotations

import numpy as np
import pytest
import torch

from hvdgrab.balance import MeanBalance, herding_bound
from hvdgrab.errors import StateError, UsageError
from tests.balance.data import random_gradients, random_orders


def literal_epoch(gradients: np.ndarray, order: list[int], stale: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Algorithm 4 of arXiv 2205.10733 with front and back pointers; (next order, mean of this epoch)."""
    n = len(order)
    h = np.zeros(gradients.shape[1], dtype=np.float32)
    total = np.zeros_like(h)
    slots, front, back = [-1] * n, 0, n - 1
    for unit in order:
        centred = gradients[unit] - stale
        total = total + gradients[unit]
        if np.dot(h, centred) <= 0:
            h = h + centred
            slots[front], front = unit, front + 1
        else:
            h = h - centred
            slots[back], back = unit, back - 1
    return slots, total / np.float32(n)


def epoch(balance: MeanBalance, gradients: np.ndarray) -> np.ndarray:
    for unit in balance.order:
        balance.add(gradients[unit])
    return balance.next_order()


@pytest.mark.parametrize("n", [1, 2, 3, 10, 11, 64])
def test_equals_the_literal_algorithm_over_epochs(n):
    gradients, order = random_gradients(1, n, 5)[0] + np.float32(0.5), random_orders(1, n)[0]
    balance, stale = MeanBalance(n, 5, order), np.zeros(5, dtype=np.float32)
    expected = order.tolist()
    for _ in range(4):
        expected, stale = literal_epoch(gradients, expected, stale)
        result = epoch(balance, gradients)
        assert result.tolist() == expected == balance.order.tolist()
        assert sorted(expected) == list(range(n))


def test_by_hand():
    """First epoch, stale mean zero: 0 -> +, 2 -> - (2·1 > 0), then h = 1 - 2 = -1: 3 -> + and h = 2: 1 -> -."""
    balance = MeanBalance(4, 1)
    signs = [balance.add(np.array([g], dtype=np.float32)) for g in (1, 2, 3, 1)]
    assert signs == [1, -1, 1, -1]
    assert balance.next_order().tolist() == [0, 2, 3, 1]


def test_lowers_the_bound_of_one_rank():
    gradients, order = random_gradients(1, 400, 8) + np.float32(1), random_orders(1, 400)
    before = herding_bound(gradients, order)[0]
    balance = MeanBalance(400, 8, order[0])
    for _ in range(8):
        after = herding_bound(gradients, epoch(balance, gradients[0])[None])[0]
    assert after < 0.4 * before


def test_an_epoch_left_early_fills_free_slots_in_the_current_order():
    balance = MeanBalance(6, 1, np.array([5, 4, 3, 2, 1, 0]))
    assert [balance.add(np.array([g], dtype=np.float32)) for g in (1, 1)] == [1, -1]
    balance.skip()
    assert balance.position == 3
    assert balance.next_order().tolist() == [5, 3, 2, 1, 0, 4]
    assert balance.position == 0


def test_the_stale_mean_is_that_of_the_gradients_seen():
    balance = MeanBalance(4, 1)
    balance.add(np.array([2], dtype=np.float32))
    balance.add(np.array([4], dtype=np.float32))
    balance.next_order()
    assert balance.state_dict()["stale_mean"].tolist() == [3]
    balance.next_order()
    assert balance.state_dict()["stale_mean"].tolist() == [3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_touches_nothing_but_its_own_place(bad):
    gradients = random_gradients(1, 9, 3)[0]
    clean, spoilt = MeanBalance(9, 3), MeanBalance(9, 3)
    gradients[4] = bad
    signs = [spoilt.add(g) for g in gradients]
    others = [clean.add(g) for g in np.delete(gradients, 4, axis=0)]
    assert signs.pop(4) == 1
    assert signs == others
    assert spoilt.dropped == 1
    for name in ("h", "total"):
        assert torch.equal(spoilt.state_dict()[name], clean.state_dict()[name])
    spoilt.next_order()
    assert spoilt.dropped == 0


def test_gradients_are_read_not_kept():
    gradients = random_gradients(1, 6, 3)[0]
    shared = torch.zeros(3)
    by_value, by_buffer = MeanBalance(6, 3), MeanBalance(6, 3)
    for g in gradients:
        by_value.add(g.copy())
        shared.copy_(torch.from_numpy(g))
        by_buffer.add(shared)
        shared.zero_()
    assert by_value.next_order().tolist() == by_buffer.next_order().tolist()


@pytest.mark.parametrize("stop", [0, 1, 5, 10])
@pytest.mark.parametrize("epochs", [0, 2])
def test_resume_at_any_position_is_bit_exact(stop, epochs, tmp_path):
    gradients = random_gradients(1, 10, 4)[0]
    whole = MeanBalance(10, 4, random_orders(1, 10)[0])
    for _ in range(epochs):
        epoch(whole, gradients)
    for unit in whole.order[:stop]:
        whole.add(gradients[unit])
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    resumed = MeanBalance(10, 4)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert resumed.position == stop
    for unit in whole.order[stop:]:
        assert whole.add(gradients[unit]) == resumed.add(gradients[unit])
    for _ in range(2):
        assert whole.next_order().tolist() == resumed.next_order().tolist()
        assert epoch(whole, gradients).tolist() == epoch(resumed, gradients).tolist()


def test_a_saved_state_is_a_copy():
    balance = MeanBalance(4, 2)
    balance.add(np.ones(2, dtype=np.float32))
    state = balance.state_dict()
    balance.add(np.ones(2, dtype=np.float32))
    assert state["h"].tolist() == [1, 1]
    other = MeanBalance(4, 2)
    other.load_state_dict(state)
    other.add(np.ones(2, dtype=np.float32))
    assert state["h"].tolist() == [1, 1]


@pytest.mark.parametrize("other", [MeanBalance(5, 2), MeanBalance(4, 3)])
def test_a_state_of_another_run_is_refused(other):
    with pytest.raises(StateError, match=r"saved mean-balance state has [nd] = "):
        MeanBalance(4, 2).load_state_dict(other.state_dict())


def test_misuse_is_refused():
    balance = MeanBalance(1, 2)
    with pytest.raises(UsageError, match=r"shape \(2,\), not \(3,\)"):
        balance.add(np.zeros(3))
    balance.add(np.zeros(2))
    with pytest.raises(UsageError, match="next_order"):
        balance.add(np.zeros(2))
    with pytest.raises(UsageError, match="next_order"):
        balance.skip()
    for wrong in ((0, 1, None), (2, 1, np.array([0, 0])), (2, 1, np.array([0]))):
        with pytest.raises(UsageError):
            MeanBalance(*wrong)

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.balance import next_order, seeded_order
from hvdgrab.balance.reference import slot_order
from hvdgrab.config import ORDERS
from hvdgrab.errors import ConfigError, UsageError

SEEDED = ("rr", "reshuffle", "shuffle-once", "fixed", "flipflop", "block-reversal", "sync-shuffle")
GRADIENT = ("grab", "recursive", "id-grab", "cd-grab")


def order_of(rule, n=20, epoch=0, seed=3, rank=1, size=4, **more):
    return seeded_order(rule, n=n, epoch=epoch, seed=seed, rank=rank, size=size, **more).tolist()


@st.composite
def orders_and_signs(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    n = draw(st.integers(0, 33))
    signs = draw(st.lists(st.sampled_from([-1, 0, 1]), max_size=n // 2))
    return draw(st.permutations(range(n))), signs


@settings(deadline=None)
@given(orders_and_signs())
def test_next_order_is_the_literal_slot_rule_and_a_permutation(case):
    order, signs = case
    result = next_order(np.array(order, dtype=np.int64), np.array(signs, dtype=np.int8))
    assert result.dtype == np.int64
    assert result.tolist() == slot_order(order, signs)
    assert sorted(result.tolist()) == sorted(order)


@pytest.mark.parametrize(
    ("order", "signs", "expected"),
    [
        ([4, 2, 0, 1, 3], [1, -1], [4, 1, 3, 0, 2]),
        ([0], [], [0]),
        ([1, 0], [1], [1, 0]),
        ([1, 0], [-1], [0, 1]),
        ([2, 0, 1], [-1], [0, 1, 2]),
        ([0, 1, 2, 3, 4, 5], [1], [0, 2, 3, 4, 5, 1]),
        ([0, 1, 2, 3, 4, 5], [0, -1, 0], [0, 3, 1, 4, 2, 5]),
        ([5, 4, 3, 2, 1, 0], [], [5, 4, 3, 2, 1, 0]),
    ],
)
def test_next_order_by_hand(order, signs, expected):
    assert next_order(np.array(order), np.array(signs, dtype=np.int8)).tolist() == expected


def test_next_order_keeps_kind_and_leaves_its_arguments_alone():
    order, signs = torch.tensor([4, 2, 0, 1, 3]), torch.tensor([1, -1], dtype=torch.int8)
    result = next_order(order, signs)
    assert isinstance(result, torch.Tensor)
    assert (result.tolist(), order.tolist(), signs.tolist()) == ([4, 1, 3, 0, 2], [4, 2, 0, 1, 3], [1, -1])
    assert isinstance(next_order(order.numpy(), signs), np.ndarray)
    same = np.array([2, 1, 0])
    next_order(same, np.array([], dtype=np.int8))[:] = 7
    assert same.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("order", "signs", "message"),
    [
        ([0, 0, 1], [1], "no permutation"),
        ([1, 2, 3], [1], "no permutation"),
        ([-1, 0, 1], [1], "no permutation"),
        ([0.0, 1.0], [1], "array of integers"),
        ([[0, 1]], [1], "array of integers"),
        ([0, 1, 2], [1, 1], "2 signs for an order that has only 1"),
        ([0, 1], [2], r"not \[2\]"),
        ([0, 1], [1.0], "array of integers"),
    ],
)
def test_next_order_refuses_nonsense(order, signs, message):
    with pytest.raises(UsageError, match=message):
        next_order(np.array(order), np.array(signs))


SEEDS = st.integers(0, 2**63 - 1)


@settings(deadline=None)
@given(st.sampled_from(SEEDED), st.integers(1, 70), st.integers(0, 5), SEEDS, st.integers(1, 9), st.integers(1, 80))
def test_every_rule_gives_every_rank_a_permutation(rule, n, epoch, seed, size, block_size):
    for rank in range(size):
        order = seeded_order(rule, n=n, epoch=epoch, seed=seed, rank=rank, size=size, block_size=block_size)
        assert order.dtype == np.int64
        assert sorted(order.tolist()) == list(range(n))


def test_every_configured_order_has_a_rule():
    for rule in ORDERS:
        assert sorted(order_of(rule)) == list(range(20))


@pytest.mark.parametrize("rule", SEEDED)
def test_a_rule_is_a_function_of_its_arguments_alone(rule):
    first = order_of(rule, epoch=3)
    np.random.default_rng(0).random(10)
    torch.manual_seed(1)
    assert order_of(rule, epoch=3) == first


def test_rr_differs_by_epoch_rank_and_seed():
    drawn = {tuple(order_of("rr", epoch=e, rank=r, seed=s)) for e in range(3) for r in range(3) for s in (0, 1, 2**32)}
    assert len(drawn) == 27
    assert order_of("reshuffle", epoch=2) == order_of("rr", epoch=2)


def test_orders_are_not_those_of_other_world_sizes_only_where_ranks_are_coordinated():
    assert order_of("rr", size=2) == order_of("rr", size=8)


def test_shuffle_once_and_fixed_never_change():
    assert [order_of("shuffle-once", epoch=e) for e in range(4)] == [order_of("rr")] * 4
    assert [order_of("fixed", epoch=e) for e in range(4)] == [list(range(20))] * 4


@pytest.mark.parametrize("epoch", [0, 2, 4])
def test_flipflop_reverses_every_second_epoch(epoch):
    assert order_of("flipflop", epoch=epoch) == order_of("rr", epoch=epoch)
    assert order_of("flipflop", epoch=epoch + 1) == order_of("rr", epoch=epoch)[::-1]


@pytest.mark.parametrize(("block_size", "cuts"), [(None, 5), (7, 7), (20, 20), (100, 20)])
@pytest.mark.parametrize("epoch", [0, 2])
def test_block_reversal_moves_whole_blocks_and_then_reverses(epoch, block_size, cuts):
    base = order_of("shuffle-once")
    blocks = [tuple(base[i : i + cuts]) for i in range(0, 20, cuts)]
    even = order_of("block-reversal", epoch=epoch, block_size=block_size)
    rest, found = even, []
    while rest:
        block = next(b for b in blocks if b[0] == rest[0])
        assert tuple(rest[: len(block)]) == block
        found.append(block)
        rest = rest[len(block) :]
    assert sorted(found) == sorted(blocks)
    assert order_of("block-reversal", epoch=epoch + 1, block_size=block_size) == even[::-1]


def test_block_reversal_reshuffles_the_blocks():
    assert len({tuple(order_of("block-reversal", epoch=2 * e, block_size=2)) for e in range(4)}) == 4


def test_sync_shuffle_is_one_permutation_turned_by_a_share_for_each_rank():
    for epoch in range(3):
        rows = [order_of("sync-shuffle", epoch=epoch, rank=r) for r in range(4)]
        turns = [rows[0].index(row[0]) for row in rows]
        assert [rows[0][turn:] + rows[0][:turn] for turn in turns] == rows
        assert sorted(turns) == [0, 5, 10, 15]
    assert order_of("sync-shuffle", epoch=0) != order_of("sync-shuffle", epoch=1)


def test_sync_shuffle_covers_all_units_at_every_step_evenly():
    """With n a multiple of W, W steps of all ranks together see W different parts of the permutation (arXiv 2110.10342)."""
    rows = [order_of("sync-shuffle", n=8, size=4, rank=r) for r in range(4)]
    assert sorted(unit for row in rows for unit in row[:2]) == list(range(8))


@pytest.mark.parametrize("rule", GRADIENT)
def test_gradient_orders_share_their_first_epoch_with_rr(rule):
    assert order_of(rule) == order_of("rr")
    with pytest.raises(UsageError, match="epoch 1 is made from gradients"):
        order_of(rule, epoch=1)


def test_the_order_of_a_seed_never_changes():
    """A saved run goes on only where a seed means the same orders under every version."""
    assert seeded_order("rr", n=8, epoch=0, seed=1, rank=0, size=2).tolist() == [3, 1, 4, 5, 2, 6, 0, 7]
    assert seeded_order("block-reversal", n=8, epoch=0, seed=1, rank=0, size=2).tolist() == [0, 7, 5, 2, 6, 3, 1, 4]
    assert seeded_order("sync-shuffle", n=8, epoch=0, seed=1, rank=0, size=2).tolist() == [4, 0, 3, 5, 6, 7, 1, 2]


def test_unknown_rules_and_bad_numbers_are_refused():
    with pytest.raises(ConfigError, match="'sorted'; valid are block-reversal, cd-grab, fixed"):
        order_of("sorted")
    with pytest.raises(ConfigError, match="block_size"):
        order_of("block-reversal", block_size=0)
    for wrong in ({"n": 0}, {"rank": 4}, {"rank": -1}, {"epoch": -1}, {"seed": -1}, {"seed": 2**64}):
        with pytest.raises(UsageError):
            order_of("rr", **wrong)

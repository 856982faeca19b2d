from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.errors import UsageError
from hvdgrab.training.units import Units, count_units, form_units


@st.composite
def dealt(draw: st.DrawFn) -> tuple[int, int, int, Units]:
    size = draw(st.integers(1, 9))
    examples = draw(st.integers(size, 400))
    batch = draw(st.integers(1, 40))
    seed, epoch, shuffle = draw(st.integers(0, 2**63)), draw(st.integers(0, 3)), draw(st.booleans())
    return examples, size, batch, form_units(examples, size, batch, seed, epoch=epoch, shuffle=shuffle)


def all_members(units: Units) -> list[np.ndarray]:
    return [units.members(rank, unit) for rank in range(units.size) for unit in range(units.n)]


@settings(deadline=None)
@given(dealt())
def test_every_example_is_in_exactly_one_unit(case):
    examples, _, _, units = case
    assert sorted(np.concatenate(all_members(units))) == list(range(examples))


@settings(deadline=None)
@given(dealt())
def test_sizes_differ_by_at_most_one_and_none_is_empty(case):
    sizes = [len(unit) for unit in all_members(case[3])]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@settings(deadline=None)
@given(dealt())
def test_units_hold_at_most_a_batch_unless_that_would_leave_one_empty(case):
    examples, size, batch, units = case
    largest = max(len(unit) for unit in all_members(units))
    if -(-examples // (size * batch)) <= examples // size:
        assert largest <= batch
    else:
        assert units.n == examples // size
        assert largest <= batch + 1


@settings(deadline=None)
@given(dealt())
def test_count_follows_the_formula(case):
    examples, size, batch, units = case
    assert units.n == count_units(examples, size, batch) == max(1, min(-(-examples // (size * batch)), examples // size))


@pytest.mark.parametrize(
    ("examples", "size", "batch", "n"),
    [(1797, 4, 16, 29), (3, 2, 1, 1), (4, 4, 16, 1), (10, 1, 3, 4), (1, 1, 1, 1), (7, 2, 2, 2), (10**9, 1024, 16, 61036)],
)
def test_counts_by_hand(examples, size, batch, n):
    assert count_units(examples, size, batch) == n


def test_fewer_examples_than_ranks_are_refused_with_both_numbers():
    with pytest.raises(UsageError, match=r"\b3 examples for 4 ranks"):
        form_units(3, 4, 16, 0)


@pytest.mark.parametrize(("examples", "size", "batch"), [(0, 1, 1), (-1, 1, 1), (5, 0, 1), (5, 1, 0)])
def test_nothing_to_deal_is_refused(examples, size, batch):
    with pytest.raises(UsageError):
        count_units(examples, size, batch)


@pytest.mark.parametrize(("rank", "unit"), [(2, 0), (-1, 0), (0, 3), (0, -1)])
def test_units_that_do_not_exist_are_refused(rank, unit):
    units = form_units(12, 2, 2, 0)
    with pytest.raises(UsageError, match="no unit"):
        units.members(rank, unit)


def test_seed_and_epoch_decide_the_deal():
    deals = {form_units(50, 2, 4, seed, epoch=epoch).digest() for seed in (0, 1, 2**40) for epoch in (0, 1)}
    assert len(deals) == 6
    assert form_units(50, 2, 4, 1, epoch=1).digest() == form_units(50, 2, 4, 1, epoch=1).digest()


def test_digest_tells_other_shapes_of_the_same_permutation_apart():
    assert form_units(48, 2, 4, 0).digest() != form_units(48, 4, 2, 0).digest()


def test_unshuffled_units_keep_the_order_of_the_dataset():
    units = form_units(10, 2, 3, 5, shuffle=False)
    assert [unit.tolist() for unit in all_members(units)] == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]


def test_members_is_a_copy():
    units = form_units(10, 2, 3, 5)
    before = units.digest()
    units.members(0, 0)[:] = 0
    assert units.digest() == before
    with pytest.raises(ValueError, match="read-only"):
        units.permutation[0] = 0


def test_the_deal_of_a_seed_never_changes():
    """A saved run goes on only where a seed means the same units under every version."""
    assert form_units(11, 2, 3, 0).permutation.tolist() == [8, 1, 9, 10, 2, 6, 5, 7, 0, 4, 3]
    packed = np.array([8, 1, 9, 10, 2, 6, 5, 7, 0, 4, 3], dtype="<i8").tobytes()
    assert form_units(11, 2, 3, 0).digest() == hashlib.sha256(b"11 2 2 " + packed).hexdigest()

from __future__ import annotations

import numpy as np
import pytest

from hvdgrab.balance import select_layers
from hvdgrab.balance.layers import normalise_rows, spans_of
from hvdgrab.errors import UsageError

NAMES = ["embed.weight", "block.0.attn.weight", "block.0.attn.bias", "block.1.attn.weight", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["*"], [0, 1, 2, 3, 4, 5]),
        (["head.*"], [4, 5]),
        (["*.bias", "head.*"], [2, 4, 5]),
        (["block.?.attn.weight"], [1, 3]),
        (["block.[!0].*"], [3]),
        (["head.bias", "embed.weight"], [0, 5]),
    ],
)
def test_patterns_select_in_the_order_of_the_names(globs, expected):
    assert select_layers(NAMES, globs) == expected


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("Head.*", r"no parameter matches 'Head\.\*'; did you mean one of head\.weight, head\.bias\?"),
        ("block.0.atn.*", r"did you mean one of .*block\.0\.attn"),
        ("zzz", r"the parameters are embed\.weight, .*, …"),
    ],
)
def test_a_pattern_without_a_match_is_refused_with_names_near_to_it(glob, message):
    with pytest.raises(UsageError, match=message):
        select_layers(NAMES, ["embed.*", glob])


def test_nothing_to_choose_with_or_from_is_refused():
    with pytest.raises(UsageError, match="no pattern"):
        select_layers(NAMES, [])
    with pytest.raises(UsageError, match="there are no parameters"):
        select_layers([], ["*"])


def test_tables_say_where_parameters_lie():
    expected = {"a": slice(0, 2), "b": slice(2, 5)}
    assert spans_of([("a", 2), ("b", 3)], 5) == spans_of({"a": (0, 2), "b": (2, 3)}, 5) == expected
    assert spans_of({"b": (2, 3)}, 9) == {"b": slice(2, 5)}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([("a", 2), ("a", 3)], "'a' stands twice"),
        ([("a", 2), ("b", 2)], "add up to 4, but a gradient has 5"),
        ({"a": (3, 3)}, r"'a' would lie at 3 … 6, outside"),
        ({"a": (2, -1)}, "'a' would lie at 2 … 1"),
    ],
)
def test_tables_that_do_not_fit_are_refused(table, message):
    with pytest.raises(UsageError, match=message):
        spans_of(table, 5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_every_part_has_norm_one_afterwards_whatever_its_scale(dtype, scale):
    rows = (np.random.default_rng(0).normal(size=(4, 7)) * scale).astype(dtype)
    whole = rows.copy()
    normalise_rows(rows, [slice(0, 3), slice(3, 6)])
    for span in (slice(0, 3), slice(3, 6)):
        norms = np.linalg.norm(whole[:, span].astype(np.float64), axis=1, keepdims=True)
        assert np.allclose(rows[:, span], whole[:, span] / norms, rtol=1e-5)
    assert np.array_equal(rows[:, 6], whole[:, 6])


def test_zero_stays_zero_and_what_is_not_finite_stays_that():
    rows = np.array([[0, 0, 3], [np.inf, 1, 4], [np.nan, 1, 5]], dtype=np.float32)
    normalise_rows(rows, [slice(0, 2), slice(2, 3), slice(3, 3)])
    assert rows[0].tolist() == [0, 0, 1]
    assert not np.isfinite(rows[1:, 0]).any()
    assert rows[1:, 2].tolist() == [1, 1]

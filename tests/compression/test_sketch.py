"""The sketch compressor: linear, right on average, and the same bytes however it is fed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.compression import build_compressor
from hvdgrab.errors import ConfigError

D, WIDTH = 5000, 64


def normal(seed: int) -> torch.Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "sign"])
def test_inner_products_are_right_on_average(dtype):
    """Var<S(x), S(y)> <= (‖x‖²‖y‖² + <x, y>²) / width for pairwise independent signs; four standard errors are allowed.

    Signs alone shrink them by the arcsine law of normal variables: (2/π)²·asin(cos(x, y)) in place of cos(x, y).
    """
    x, seeds = normal(1), 150
    y = 0.6 * x + 0.8 * normal(2)
    true, sizes = float(x @ y), float(x.norm() * y.norm())
    expected = (2 / np.pi) ** 2 * np.arcsin(true / sizes) * sizes if dtype == "sign" else true
    found = []
    for seed in range(seeds):
        make = build_compressor("sketch", width=WIDTH, dtype=dtype, seed=seed)
        found.append(float(make.expand(make.compress(x)) @ make.expand(make.compress(y))))
    deviation = np.sqrt((sizes**2 + true**2) / WIDTH)
    assert abs(np.mean(found) - expected) <= 4 * deviation / np.sqrt(seeds)
    assert np.std(found) <= 1.3 * deviation


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "sign"])
@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, D), max_size=4), st.randoms(use_true_random=False))
def test_pieces_in_any_order_give_the_same_bytes(dtype, cuts, random):
    """Whole numbers: sums without rounding, whatever the hooks' order."""
    make = build_compressor("sketch", width=WIDTH, dtype=dtype, seed=3)
    vector = torch.randint(-9, 10, (D,), generator=torch.Generator().manual_seed(0)).float()
    edges = sorted({0, D, *cuts})
    pieces = list(itertools.pairwise(edges))
    random.shuffle(pieces)
    total = torch.zeros(WIDTH)
    for start, stop in pieces:
        total += make.projection.fold(vector[start:stop], start)
    assert np.array_equal(make.encode(total).data, make.compress(vector).data)


def test_the_sketch_of_a_difference_is_the_difference_of_sketches():
    fold = build_compressor("sketch", width=WIDTH).projection.fold
    first, second = normal(1), normal(2)
    assert torch.allclose(fold(first) - fold(second), fold(first - second), atol=1e-4)
    whole = first.round() - second.round()
    assert torch.equal(fold(first.round()) - fold(second.round()), fold(whole))


def test_ranks_of_one_seed_agree_and_another_seed_differs():
    payloads = [build_compressor("sketch", width=WIDTH, seed=seed).compress(normal(1)).data for seed in (5, 5, 6)]
    assert np.array_equal(payloads[0], payloads[1])
    assert not np.array_equal(payloads[0], payloads[2])


def test_four_kilobytes_for_every_model():
    make = build_compressor("sketch")
    assert dict(make.info.options) == {"dtype": "int8", "seed": 0, "width": 4096}
    assert {make.wire_bytes(d) for d in (0, 1, 10**6, 2**40)} == {4204}
    assert make.width(2**40) == 4096


def test_options_that_there_are_not():
    with pytest.raises(ConfigError, match="'sketch' has no dtype 'bf16'; valid are int8, fp32, fp16, sign"):
        build_compressor("sketch", dtype="bf16")
    with pytest.raises(ConfigError, match="seed of a sketch"):
        build_compressor("sketch", seed=-1)

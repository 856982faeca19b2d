from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.compression import FoldSketch
from hvdgrab.compression.fold import hashed_signs, largest_prime, splitmix64
from hvdgrab.compression.rows import POOL
from hvdgrab.errors import ConfigError, UsageError

WIDTH = 7
BLOCK = POOL * WIDTH
LENGTHS = (0, 1, WIDTH - 1, WIDTH, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 77)


def integers(d: int, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: float32 sums of them are exact in any order."""
    return torch.randint(-8, 9, (d,), generator=torch.Generator().manual_seed(seed)).float()


def literal(sketch: FoldSketch, vector: torch.Tensor, offset: int = 0) -> np.ndarray:
    """One coordinate after the other, in float64."""
    out = np.zeros(sketch.width)
    for i, value in enumerate(vector.double().tolist()):
        block, place = divmod(offset + i, POOL * sketch.buckets)
        sign = int(hashed_signs(sketch.seed, 1, np.array([block], dtype=np.uint64))[0])
        sign *= int(hashed_signs(sketch.seed, 2, np.array([place], dtype=np.uint64))[0])
        out[(offset + i) % sketch.buckets] += sign * value
    return out


@pytest.mark.parametrize("d", LENGTHS)
def test_equals_the_definition(d):
    sketch = FoldSketch(WIDTH, 3)
    folded = sketch.fold(integers(d))
    assert (folded.shape, folded.dtype) == ((WIDTH,), torch.float32)
    assert np.array_equal(folded.numpy(), literal(sketch, integers(d)))


@settings(deadline=None)
@given(st.integers(0, 3 * BLOCK), st.lists(st.integers(0, 2 * BLOCK), max_size=4), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_pieces_at_their_offsets_add_up_to_the_whole(last, lengths, width, seed):
    sketch = FoldSketch(width, seed)
    lengths = [*lengths, last]
    vector = integers(sum(lengths))
    offset, total = 0, torch.zeros(width)
    for length in lengths:
        total += sketch.fold(vector[offset : offset + length], offset)
        offset += length
    assert torch.equal(total, sketch.fold(vector))


@pytest.mark.parametrize("offset", [1, BLOCK - 1, BLOCK, 7 * BLOCK + 5])
def test_an_offset_is_as_if_zeros_stood_before(offset):
    sketch, vector = FoldSketch(WIDTH, 9), integers(2 * BLOCK + 3)
    assert torch.equal(sketch.fold(vector, offset), sketch.fold(torch.cat([torch.zeros(offset), vector])))


def test_linear():
    sketch, a, b = FoldSketch(WIDTH, 1), integers(5000, 1), integers(5000, 2)
    assert torch.equal(sketch.fold(a) - sketch.fold(b), sketch.fold(a - b))
    assert torch.equal(sketch.fold(4 * a), 4 * sketch.fold(a))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("strided", [False, True])
def test_other_types_and_strides_fold_in_float32(dtype, strided):
    """Sums of thousands of sevens leave what half precision can hold; several conversion chunks."""
    sketch = FoldSketch(16, 1)
    vector = torch.full((700_001,), 7.0) + integers(700_001)
    given_vector = vector.to(dtype)
    if strided:
        given_vector = given_vector.repeat_interleave(2)[::2]
    assert torch.equal(sketch.fold(given_vector), sketch.fold(vector))


def test_a_strided_float32_vector_folds_as_its_copy():
    vector = integers(6 * BLOCK + 5)
    assert torch.equal(FoldSketch(WIDTH).fold(vector[::2]), FoldSketch(WIDTH).fold(vector[::2].clone()))


def test_autocast_and_gradients_do_not_reach_into_the_sketch():
    sketch, vector = FoldSketch(WIDTH, 2), torch.randn(4 * BLOCK) + 1000
    expected = sketch.fold(vector)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        folded = sketch.fold(vector.requires_grad_())
    assert torch.equal(folded, expected)
    assert not folded.requires_grad


def test_input_is_neither_changed_nor_kept():
    sketch, vector = FoldSketch(WIDTH), integers(BLOCK + 3)
    before = vector.clone()
    folded = sketch.fold(vector)
    kept = folded.clone()
    assert torch.equal(vector, before)
    vector.zero_()
    sketch.fold(integers(BLOCK, 5))
    assert torch.equal(folded, kept)


def test_squared_norms_are_unbiased():
    """E|S(x)|^2 = |x|^2: mean over 400 seeds; with 64 buckets one estimate scatters by sqrt(2 / 64), their mean by 0.9 %."""
    vector = torch.randn(3 * POOL * 64 + 100, generator=torch.Generator().manual_seed(0))
    squares = [float(FoldSketch(64, seed).fold(vector).square().sum()) for seed in range(400)]
    assert np.mean(squares) == pytest.approx(float(vector.square().sum()), rel=0.04)
    assert np.std(squares) / np.mean(squares) == pytest.approx(np.sqrt(2 / 64), rel=0.25)


def test_constant_vectors_do_not_cancel_or_add_up():
    """Without signs a constant vector would give |x|^2 times the number of rows; the pool keeps it near |x|^2."""
    vector = torch.ones(100 * POOL * 64)
    squares = [float(FoldSketch(64, seed).fold(vector).square().sum()) for seed in range(100)]
    assert np.mean(squares) == pytest.approx(vector.numel(), rel=0.25)


def test_signs_are_fair_and_independent_between_coordinates_of_a_bucket():
    signs = np.array([FoldSketch(4, seed).signs(3 * POOL * 4) for seed in range(400)], dtype=np.float64)
    assert np.abs(signs.mean(axis=0)).max() < 0.25
    bucket = signs[:, ::4]
    products = np.abs(bucket.T @ bucket / 400 - np.eye(bucket.shape[1]))
    assert products.max() < 0.3


def test_signs_method_is_what_fold_does():
    sketch, vector = FoldSketch(WIDTH, 11), integers(3 * BLOCK + 9)
    expected = np.zeros(WIDTH)
    np.add.at(expected, (np.arange(len(vector)) + 5) % WIDTH, sketch.signs(len(vector), 5) * vector.numpy())
    assert np.array_equal(sketch.fold(vector, 5).numpy(), expected)


def test_signs_depend_on_nothing_but_seed_and_coordinate():
    torch.manual_seed(1)
    fresh = FoldSketch(WIDTH, 7).fold(integers(2 * BLOCK + 1))
    used = FoldSketch(WIDTH, 7)
    used.fold(integers(9 * BLOCK))
    torch.manual_seed(2)
    assert torch.equal(used.fold(integers(2 * BLOCK + 1)), fresh)
    assert not torch.equal(FoldSketch(WIDTH, 8).fold(integers(2 * BLOCK + 1)), fresh)


def test_signs_never_change():
    """Saved running sums are sums of sketches: the signs of a seed are part of the format."""
    assert [hex(int(splitmix64(np.array([value], dtype=np.uint64))[0])) for value in (0, 1)] == [
        "0xe220a8397b1dcdaf",
        "0x910a2dec89025cc1",
    ]
    assert FoldSketch(4, 0).signs(16).tolist() == [-1, 1, -1, -1, 1, -1, 1, 1, 1, 1, 1, 1, -1, 1, 1, 1]


def test_a_value_that_is_not_finite_shows_in_the_sketch():
    for place in (0, BLOCK - 1, BLOCK + 5, 3 * BLOCK + 1):
        for bad in (float("nan"), float("inf")):
            vector = integers(3 * BLOCK + 2)
            vector[place] = bad
            finite = torch.isfinite(FoldSketch(WIDTH).fold(vector))
            assert not bool(finite[place % WIDTH])


def test_wrong_use_is_refused():
    for width, seed in ((0, 0), (-1, 0), (4, -1), (4, 2**64)):
        with pytest.raises(ConfigError):
            FoldSketch(width, seed)
    for vector, offset in ((torch.zeros(2, 2), 0), (torch.zeros(3, dtype=torch.int64), 0), (torch.zeros(3), -1)):
        with pytest.raises(UsageError, match="floating-point vector"):
            FoldSketch(4).fold(vector, offset)


def test_buckets_are_the_largest_prime_and_the_rest_is_zero():
    assert [largest_prime(width) for width in (1, 2, 3, 4, 9, 25, 256, 1024, 4096)] == [1, 2, 3, 3, 7, 23, 251, 1021, 4093]
    folded = FoldSketch(16, 1).fold(integers(5000))
    assert np.array_equal(folded.numpy(), literal(FoldSketch(16, 1), integers(5000)))
    assert folded[:13].all()
    assert not folded[13:].any()


def test_columns_of_a_matrix_meet_others_than_themselves():
    """Inner products of rank-one matrices, 64 columns wide, are as exact as those of any vectors: 1 / sqrt(width)."""
    generator = np.random.default_rng(0)
    sketch, errors = FoldSketch(1024, 5), []
    column = generator.standard_normal(64)
    for _ in range(100):
        pair = [torch.from_numpy(np.outer(generator.standard_normal(3000), column)).float().reshape(-1) for _ in range(2)]
        exact, norms = float(pair[0] @ pair[1]), float(pair[0].norm() * pair[1].norm())
        errors.append((float(sketch.fold(pair[0]) @ sketch.fold(pair[1])) - exact) / norms)
    assert np.sqrt(np.mean(np.square(errors))) * np.sqrt(1024) == pytest.approx(1.0, abs=0.35)

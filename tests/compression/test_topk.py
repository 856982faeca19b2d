"""Selection of the largest magnitudes, and top-k as a whole."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hvdgrab.compression import Payload, build_compressor, topk
from hvdgrab.compression.payload import HEADER_BYTES, Envelope
from hvdgrab.compression.topk import largest
from hvdgrab.errors import PayloadError, UsageError

D = 6000


def literal(values: np.ndarray, k: int) -> list[int]:
    """Largest magnitudes first, of equal ones the first; NaN above all."""
    order = np.lexsort([-np.abs(values.astype(np.float64)), ~np.isnan(values)])  # stable; NaN of a key sorts last, but leads here
    return sorted(order[:k].tolist())


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    normal = rng.normal(size=D).astype(np.float32)
    rare = np.where(rng.random(D) < 0.001, normal, 0)
    return {
        "normal": normal,
        "heavy tail": normal**9,
        "all zero": np.zeros(D),
        "constant": np.full(D, -0.5),
        "ascending": np.sort(normal),
        "descending": np.sort(normal)[::-1],
        "fewer than k are not zero": rare,
        "ties": np.round(normal),
        "two values": np.where(normal > 2, 1.0, 0.5),
        "one large": np.eye(1, D, D // 2)[0] * 1e38,
        "a cluster where nobody looks": np.concatenate([normal[:90] * 1e6, normal[90:]]),
        "NaN": np.where(rng.random(D) < 0.1, np.nan, normal),
        "infinite": np.where(rng.random(D) < 0.001, -np.inf, normal),
        "denormal": normal * 1e-41,
    }


@pytest.mark.parametrize("shape", shapes())
@pytest.mark.parametrize("sample", [64, 300])
def test_exactly_the_largest_are_kept_whatever_the_sample_says(shape, sample, monkeypatch):
    monkeypatch.setattr(topk, "SAMPLE", sample)
    monkeypatch.setattr(topk, "CHUNK", 500)
    values = np.ascontiguousarray(shapes()[shape], dtype=np.float32)
    for k in (1, 20, 60, 2000, D - 1, D):
        assert largest(values, k).tolist() == literal(values, k)


def test_a_sample_that_misleads_is_noticed(monkeypatch):
    """The guess lies above or far below the k-th largest."""
    values = np.random.default_rng(0).permutation(D).astype(np.float32)
    monkeypatch.setattr(topk, "CHUNK", 100)
    monkeypatch.setattr(topk, "SAMPLE", 100)
    for guess in (0.0, 3.0, D - 5.0, D + 7.0):
        monkeypatch.setattr(topk, "_guess", lambda bits, k, guess=guess: int(np.float32(guess).view(np.int32)))
        assert largest(values, 50).tolist() == literal(values, 50)


@settings(deadline=None, max_examples=50)
@given(arrays.arrays(np.float32, st.integers(1, 60), elements=st.floats(width=32) | st.just(1.0)), st.integers(0, 60))
def test_small_vectors(values, k):
    k = min(k, len(values))
    assert largest(values, k).tolist() == literal(values, k)


def test_kept_values_are_exact_and_the_rest_is_zero():
    difference = torch.from_numpy(shapes()["normal"])
    make = build_compressor("topk", ratio=0.01, dtype="fp32")
    expanded = make.expand(make.compress(difference))
    kept = torch.topk(difference.abs(), 60).indices
    expected = torch.zeros(D).index_copy(0, kept, difference[kept])
    assert torch.equal(expanded, expected)


def test_halves_hold_the_values_with_eleven_bits():
    difference = torch.from_numpy(shapes()["normal"]) * 1e-9
    make = build_compressor("topk", ratio=0.01)
    expanded = make.expand(make.compress(difference))
    kept = expanded.nonzero()[:, 0]
    assert len(kept) == 60
    assert bool(((expanded[kept] / difference[kept] - 1).abs() <= 2.0**-11).all())


@pytest.mark.parametrize(("options", "d", "k"), [
    ({}, 10_000_000, 100_000), ({}, 7, 1), ({}, 0, 0), ({"ratio": 0.5}, 5, 2), ({"ratio": 1.0}, 5, 5),
    ({"k": 9}, 5, 5), ({"k": 9}, 50, 9),
])  # fmt: skip
def test_how_many_are_kept(options, d, k):
    size = build_compressor("topk", dtype="fp32", **options).wire_bytes(d)
    assert size == HEADER_BYTES + 8 * k


def test_a_vector_too_long_for_32_bit_places_is_refused(monkeypatch):
    assert np.iinfo(np.int32).max == topk.LARGEST_D
    make = build_compressor("topk", k=3)
    assert make.wire_bytes(2**31 - 1) > 0
    with pytest.raises(UsageError, match="32-bit places and cannot address 2147483648 values; use kind 'sketch'"):
        make.wire_bytes(2**31)
    payload = make.compress(torch.ones(101))
    monkeypatch.setattr(topk, "LARGEST_D", 100)
    assert make.compress(torch.ones(100)).nbytes == make.wire_bytes(100)
    with pytest.raises(UsageError, match="cannot address 101 values"):
        make.compress(torch.ones(101))
    with pytest.raises(PayloadError, match="another shape: 3 of 101 values"):
        make.expand(payload)


def test_lengths_of_the_header_have_64_bits():
    data = np.zeros(HEADER_BYTES, dtype=np.uint8)
    Envelope("none", "fp32", 0, 2**40 + 1, 2**40 + 1, 0).seal(data)
    assert int(data[24:32].view("<u8")[0]) == int(data[32:40].view("<u8")[0]) == 2**40 + 1
    assert build_compressor("int8").wire_bytes(2**33) == HEADER_BYTES + 2**33 + 2**27


@pytest.mark.parametrize("place", [-1, 9])
def test_places_outside_of_the_vector_are_refused(place):
    """Bytes with a valid checksum: not damage, but a bug or malice on the other side."""
    make = build_compressor("topk", k=1)
    data = make.compress(torch.ones(9)).data
    data[HEADER_BYTES : HEADER_BYTES + 4].view(np.int32)[0] = place
    make._envelope(9).seal(data)
    with pytest.raises(PayloadError, match=r"places outside of 0 … 8"):
        make.expand(Payload(data))

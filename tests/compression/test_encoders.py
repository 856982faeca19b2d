"""Value encoders: stated bounds of error, and the ends of what float32 holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hvdgrab.compression import encoders
from hvdgrab.compression.encoders import ENCODERS, BFloat16, Float16, Float32, Int8, Sign, encoder_of
from hvdgrab.errors import ConfigError

ALL = [Float32(), Float16(), BFloat16(), Int8(), Int8(1), Int8(7), Sign()]
LARGEST = float(np.finfo(np.float32).max)
FINITE = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-LARGEST, LARGEST, width=32, allow_subnormal=True))


def name(encoder):
    return f"{encoder.dtype}/{encoder.block}"


def there_and_back(encoder, values):
    values = np.asarray(values, dtype=np.float32)
    raw, out = np.empty(encoder.nbytes(len(values)), dtype=np.uint8), np.empty((1, len(values)), dtype=np.float32)
    encoder.encode(values, raw)
    encoder.decode(raw[None], out)
    return out[0]


def rounding(encoder, values):
    """The bound that a reader would write down, for one value each."""
    sizes = np.abs(values.astype(np.float64))
    top = sizes.max(initial=0.0)
    if isinstance(encoder, Float16):
        return np.maximum(2.0**-11 * sizes, np.maximum(top * 2.0**-39, 2.0**-149))
    if isinstance(encoder, BFloat16):
        return np.maximum(2.0**-8 * sizes, 2.0**-134)
    if isinstance(encoder, Int8):
        starts = range(0, len(values), encoder.block)
        scale = np.concatenate([np.full(len(part), part.max()) for part in (sizes[i : i + encoder.block] for i in starts)]) / 127
        return scale / 2 * (1 + 1e-4) + 2.0**-149
    return np.zeros_like(sizes)


@pytest.mark.parametrize("encoder", ALL, ids=name)
@settings(deadline=None, max_examples=40)
@given(values=FINITE)
def test_finite_values_stay_finite_and_within_the_bound(encoder, values):
    found = there_and_back(encoder, values)
    assert np.isfinite(found).all()
    error = np.abs(found.astype(np.float64) - values.astype(np.float64))
    assert (error <= encoder.tolerance(values)).all()
    if len(values) and not isinstance(encoder, Sign):
        assert (error <= rounding(encoder, values)).all()
        assert (encoder.tolerance(values) <= rounding(encoder, values) * (1 + 1e-4) + 2.0**-149).all()


@pytest.mark.parametrize("encoder", ALL, ids=name)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e38, 1e-42])
def test_what_is_not_finite_stays_so(encoder, bad, scale):
    for place in (0, 255, 256, 299):
        values = np.full(300, scale, dtype=np.float32)
        values[place] = bad
        assert not np.isfinite(there_and_back(encoder, values)[place])


def test_half_precision_is_plain_where_no_scale_is_needed():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    assert np.array_equal(there_and_back(Float16(), values), values.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("unit", [1e-38, 1e-12, 1.0, 65504.0, 1e38])
def test_half_precision_keeps_eleven_bits_in_any_unit(unit):
    values = np.float32(unit) * np.linspace(0.001, 3, 1000, dtype=np.float32)
    found = there_and_back(Float16(), values)
    assert np.abs(found / values.astype(np.float64) - 1).max() <= 2.0**-11


def test_bfloat16_rounds_to_nearest_even():
    values = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -LARGEST, 2.0**-133]
    assert there_and_back(BFloat16(), values).tolist() == [1, 1 + 2.0**-6, 1 + 2.0**-7, -3.3895313892515355e38, 2.0**-133]


def test_int8_worked_example():
    """Blocks of two: the scales are 127/127 and 0.254/127."""
    raw = np.empty(Int8(2).nbytes(3), dtype=np.uint8)
    Int8(2).encode(np.array([127, -63.6, 0.254], dtype=np.float32), raw)
    assert raw[:8].view("<f4").tolist() == [1.0, pytest.approx(0.002)]
    assert raw[8:].view(np.int8).tolist() == [127, -64, 127]


def test_one_block_does_not_change_another():
    values = np.concatenate([np.full(256, 1e30), np.full(256, 1e-30), np.zeros(256), np.full(5, 1e-45)]).astype(np.float32)
    values[3] = np.nan
    found = there_and_back(Int8(), values)
    assert np.isnan(found[:256]).all()
    assert found[256:512] == pytest.approx(1e-30, rel=1e-6)
    assert found[512:].tolist() == values[512:].tolist()


def test_signs_worked_example():
    raw = np.empty(Sign().nbytes(9), dtype=np.uint8)
    Sign().encode(np.array([1, -2, 3, 0, -5, 6, 7, 8, -4], dtype=np.float32), raw)
    assert raw[:4].view("<f4")[0] == 4
    assert np.unpackbits(raw[4:])[:9].tolist() == [1, 0, 1, 1, 0, 1, 1, 1, 0]
    assert there_and_back(Sign(), [1, -2, 3, 0]).tolist() == [1.5, -1.5, 1.5, 1.5]


@pytest.mark.parametrize("encoder", ALL, ids=name)
def test_long_vectors_go_in_pieces_and_come_out_alike(encoder, monkeypatch):
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    whole = there_and_back(encoder, values)
    monkeypatch.setattr(encoders, "CHUNK", 600)
    assert np.array_equal(there_and_back(encoder, values), whole)


def test_dtypes_are_names_of_encoders():
    assert all(ENCODERS[dtype].dtype == dtype and len(dtype) == 4 for dtype in ENCODERS)
    with pytest.raises(ConfigError, match="'topk' has no dtype 'int4'; valid are fp16, fp32"):
        encoder_of("int4", ("fp16", "fp32"), "topk")

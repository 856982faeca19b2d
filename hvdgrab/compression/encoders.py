"""Value encoders, the parts of compressors that turn float32 values into bytes and back.

An encoder knows nothing of headers, selections or sketches.  Bytes may lie at any address; results may have any strides.
NaN and infinities stay non-finite, and may make neighbours non-finite; otherwise finite values stay finite.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.errors import ConfigError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

BLOCK = 256
"""Number of values that share a scale in `Int8`, by default."""
CHUNK = 2**16
"""Values converted at a time, so that working memory does not grow with the vector."""

_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_OF_8_BITS, _LARGEST_OF_11_BITS = (2.0**128 - 2.0 ** (127 - bits) for bits in (7, 10))
_SMALLEST = np.float32(2.0**-149)
_SCALE_SMALL, _SCALE_LARGE = 2.0**-118, 2.0**127
_PER_STEP = np.float32(1 / 127)
_LARGEST_SCALE = np.nextafter(np.float32(_LARGEST / 127), np.float32(0))


class Encoder(Protocol):
    """Turns n float32 values into nbytes(n) bytes and back."""

    dtype: str
    """Its name in settings, headers and tables: four characters."""
    block: int
    """Number of values that share a scale, or 0."""
    lossless: bool
    """Whether decode(encode(values)) equals values, bit for bit."""

    def nbytes(self, n: int) -> int:
        """Bytes of n values."""

    def encode(self, values: Floats, out: Bytes) -> None:
        """Write the bytes of `values`, (n,) contiguous float32, to `out`, (nbytes(n),) uint8."""

    def decode(self, raw: Bytes, out: Floats) -> None:
        """Write the values of each row of `raw`, (m, nbytes(n)) uint8, to the rows of `out`, (m, n) float32."""

    def tolerance(self, values: Floats) -> NDArray[np.float64]:
        """Bound the error of each value after encoding and decoding: (n,) float64; for finite values."""


class Float32:
    """Sends the values themselves: 4 bytes each."""

    dtype, block, lossless = "fp32", 0, True

    def nbytes(self, n: int) -> int:
        """4·n."""
        return 4 * n

    def encode(self, values: Floats, out: Bytes) -> None:
        """See `Encoder`."""
        np.copyto(out.view(np.float32), values)

    def decode(self, raw: Bytes, out: Floats) -> None:
        """See `Encoder`."""
        np.copyto(out, raw.view(np.float32))

    def tolerance(self, values: Floats) -> NDArray[np.float64]:
        """Zero."""
        return np.zeros(len(values))


class Float16:
    """Sends half precision under one common power of two: 2 bytes each, and 4.

    The largest magnitude is scaled to 2^14 … 2^15, so that nothing overflows at 65,504, and values down to 2^-28 of the largest
    keep 11 bits however small they all are.  Scaling by a power of two is exact.  Finite values beyond the largest float32 of
    11 bits, 3.401e38, saturate to it.
    """

    dtype, block, lossless = "fp16", 0, False

    def nbytes(self, n: int) -> int:
        """4 + 2·n."""
        return 4 + 2 * n

    def encode(self, values: Floats, out: Bytes) -> None:
        """See `Encoder`."""
        largest = peak(values)
        exponent = _exponent(largest)
        out[:4].view(np.float32)[0] = 2.0**-exponent
        halves, factor = out[4:].view(np.float16), np.float32(2.0**exponent)
        for part in chunks(len(values)):
            scaled = _saturated(values[part], largest, _LARGEST_OF_11_BITS) * factor
            np.copyto(halves[part], torch.from_numpy(scaled).to(torch.float16).numpy())

    def decode(self, raw: Bytes, out: Floats) -> None:
        """See `Encoder`."""
        halves, scale = _tensor(raw[:, 4:].view(np.float16)), _tensor(raw[:, :4].view(np.float32))
        torch.mul(halves, scale, out=torch.from_numpy(out))

    def tolerance(self, values: Floats) -> NDArray[np.float64]:
        """2^-11 of the value, and at least half of the smallest step of a half under the common scale."""
        largest = peak(values)
        step = 2.0 ** (-25 - _exponent(largest)) if largest else 0.0
        return np.maximum(np.abs(values.astype(np.float64)) * 2.0**-11, step)


class BFloat16:
    """Sends the upper half of a float32, rounded: 2 bytes each.  Finite values beyond its largest, 3.39e38, saturate to it."""

    dtype, block, lossless = "bf16", 0, False

    def nbytes(self, n: int) -> int:
        """2·n."""
        return 2 * n

    def encode(self, values: Floats, out: Bytes) -> None:
        """See `Encoder`."""
        largest, halves = peak(values), out.view(np.int16)
        for part in chunks(len(values)):
            piece = _saturated(values[part], largest, _LARGEST_OF_8_BITS)
            np.copyto(halves[part], torch.from_numpy(piece).to(torch.bfloat16).view(torch.int16).numpy())

    def decode(self, raw: Bytes, out: Floats) -> None:
        """See `Encoder`."""
        torch.from_numpy(out).copy_(_tensor(raw.view(np.int16)).view(torch.bfloat16))

    def tolerance(self, values: Floats) -> NDArray[np.float64]:
        """2^-8 of the value (8 bits, and saturation costs no more), and at least half of the smallest step."""
        return np.maximum(np.abs(values.astype(np.float64)) * 2.0**-8, 2.0**-134)


class Int8:
    """Sends whole numbers of -127 … 127 times a float32 scale for each block: 1 byte each, and 4 a block.

    A block's scale is its largest magnitude / 127.  One value that is not finite makes its whole block NaN.

    Args:
        block: number of values that share a scale, at least 1.

    Raises:
        ConfigError: a block below 1.
    """

    dtype, lossless = "int8", False

    def __init__(self, block: int = BLOCK) -> None:
        if not 1 <= block < 2**32:
            raise ConfigError(f"a block of int8 values must hold at least 1 and fewer than 2^32 of them, not {block}")
        self.block = block

    def nbytes(self, n: int) -> int:
        """n, and 4 for each started block."""
        return n + 4 * -(-n // self.block)

    def encode(self, values: Floats, out: Bytes) -> None:
        """See `Encoder`."""
        n, block = len(values), self.block
        blocks, step = -(-n // block), max(1, CHUNK // block)
        scales, codes = out[: 4 * blocks].view(np.float32), out[4 * blocks :].view(np.int8)
        for start in range(0, blocks, step):
            part = values[start * block : (start + step) * block]
            if ragged := len(part) % block:
                part = np.concatenate([part, np.zeros(block - ragged, dtype=np.float32)])
            quotients = _quotients(part.reshape(-1, block), scales[start : start + step]).reshape(-1)
            target = codes[start * block : (start + step) * block]
            np.copyto(target, quotients[: len(target)], casting="unsafe")

    def decode(self, raw: Bytes, out: Floats) -> None:
        """See `Encoder`."""
        (m, n), block = out.shape, self.block
        whole, blocks = n // block, -(-n // block)
        scales, codes = raw[:, : 4 * blocks].view(np.float32), raw[:, 4 * blocks :].view(np.int8)
        if whole:
            cut, shape = whole * block, (m, whole, block)
            np.multiply(codes[:, :cut].reshape(shape), scales[:, :whole, None], out=out[:, :cut].reshape(shape))
        if whole < blocks:
            np.multiply(codes[:, whole * block :], scales[:, whole:], out=out[:, whole * block :])

    def tolerance(self, values: Floats) -> NDArray[np.float64]:
        """Half of the block's scale, and the rounding to float32."""
        largest = np.maximum.reduceat(np.abs(values).astype(np.float64), np.arange(0, len(values), self.block), dtype=np.float64)
        return np.repeat(largest * (0.5 / 127 + 2.0**-22) + float(_SMALLEST), self.block)[: len(values)]


class Sign:
    """Sends one bit a value and one float32 scale, the mean magnitude (which minimises the squared error): n/8 bytes, and 4.

    Zero counts as positive.  One value that is not finite makes all of them non-finite.
    """

    dtype, block, lossless = "sign", 0, False

    def nbytes(self, n: int) -> int:
        """4, and one for each started group of eight values."""
        return 4 + -(-n // 8)

    def encode(self, values: Floats, out: Bytes) -> None:
        """See `Encoder`."""
        mean = np.abs(values).mean(dtype=np.float64) if len(values) else 0.0
        out[:4].view(np.float32)[0] = np.minimum(mean, _LARGEST) if np.isfinite(mean) else np.nan
        np.copyto(out[4:], np.packbits(values >= 0))

    def decode(self, raw: Bytes, out: Floats) -> None:
        """See `Encoder`."""
        np.multiply(np.unpackbits(raw[:, 4:], axis=1, count=out.shape[1]), np.float32(2), out=out)
        out -= 1
        out *= raw[:, :4].view(np.float32)

    def tolerance(self, values: Floats) -> NDArray[np.float64]:
        """The distance of the value's magnitude from the mean magnitude."""
        sizes = np.abs(values.astype(np.float64))
        mean = sizes.mean() if len(values) else 0.0
        return np.abs(sizes - mean) + (sizes + mean) * 2.0**-23 + float(_SMALLEST)


def peak(values: Floats) -> float:
    """The largest magnitude; NaN if there is a NaN, 0 if there are no values."""
    return max(float(values.max()), -float(values.min())) if len(values) else 0.0


def chunks(n: int) -> list[slice]:
    """Divide 0 … n into slices of at most `CHUNK`."""
    return [slice(start, min(n, start + CHUNK)) for start in range(0, n, CHUNK)]


def _saturated(values: Floats, largest: float, bound: float) -> Floats:
    """Clip the values to `bound`, so that rounding makes none infinite; return them as they are if `largest` is within it."""
    return np.clip(values, -bound, bound) if bound < largest < np.inf else values


def _exponent(largest: float) -> int:
    """The exponent of the power of two that scales a magnitude to 2^14 … 2^15; 0 for zero, NaN and infinity."""
    if not 0 < largest < np.inf:
        return 0
    return min(126, 15 - int(np.frexp(largest)[1]))


def _quotients(values: Floats, scales: Floats) -> Floats:
    """Round `values` (rows, n), divided by the scale of their row, to whole numbers; write the scales (rows,)."""
    quotients = np.abs(values)
    largest = np.maximum.reduce(quotients, axis=1)
    ordinary = largest.tolist()
    if min(ordinary) > _SCALE_SMALL and sum(ordinary) < _SCALE_LARGE:  # the sum is NaN or infinite if one of them is
        np.multiply(largest, _PER_STEP, out=scales)
        np.divide(values, scales[:, None], out=quotients)
    else:
        _quotients_of_extremes(values, largest, scales, quotients)
    return np.rint(quotients, out=quotients)


def _quotients_of_extremes(values: Floats, largest: Floats, scales: Floats, quotients: Floats) -> None:
    """Do the same for rows of only zeros, and of denormal, very large or non-finite numbers."""
    finite = np.isfinite(largest)
    scale = np.minimum(np.where(finite, largest, 0) * _PER_STEP, _LARGEST_SCALE)
    # round a denormal scale up, so that the quotient does not exceed 127
    scale = np.where((largest > 0) & (scale < np.float32(_SCALE_SMALL)), scale + _SMALLEST, scale)
    np.copyto(scales, np.where(finite, scale, np.float32(np.nan)))
    rows = finite & (scale > 0)
    np.divide(values, np.where(rows, scale, np.float32(1))[:, None], out=quotients)
    quotients[~rows] = 0


def _tensor(raw: NDArray[np.generic]) -> torch.Tensor:
    """Bytes from the wire in a form that torch accepts: aligned, writable, rows at whole values; copied if they are not."""
    # a single row counts as contiguous with any stride, so that only a plain copy helps
    whole = all(stride % raw.itemsize == 0 for stride in raw.strides)
    return torch.from_numpy(np.require(raw, requirements=["A", "W"]) if whole else raw.copy())


ENCODERS = {encoder.dtype: encoder for encoder in (Float32, Float16, BFloat16, Int8, Sign)}


def encoder_of(dtype: str, valid: tuple[str, ...], kind: str) -> Encoder:
    """Make the encoder that a ``dtype`` option names.

    Raises:
        ConfigError: `dtype` is not one of `valid`.
    """
    if dtype not in valid:
        raise ConfigError(f"the compressor {kind!r} has no dtype {dtype!r}; valid are {', '.join(valid)}")
    return ENCODERS[dtype]()

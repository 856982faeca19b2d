"""``topk``: the largest values of a difference, encoded, with their places.

`largest` finds the k largest magnitudes exactly, in about one pass: a threshold from a sample, then only its candidates.
Magnitudes are compared as the lower 31 bits of their float32 patterns: these are whole numbers in the same order, with NaN above
infinity, so that no value is a special case.  The values alone decide which are kept (of equal magnitudes, the first ones); the
sample affects only the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hvdgrab.compression.coded import Coded
from hvdgrab.compression.encoders import Bytes, Floats, encoder_of
from hvdgrab.compression.registry import register
from hvdgrab.errors import ConfigError, PayloadError, UsageError

RATIO = 0.01
DTYPES = ("fp16", "fp32")
LARGEST_D = 2**31 - 1
"""Values of the longest vector: places travel as int32."""
SAMPLE = 2**15
CHUNK = 2**16
"""Values examined together, whose magnitudes stay in the processor's cache."""
_MAGNITUDE = np.int32(0x7FFFFFFF)

Places = NDArray[np.int64]
Magnitudes = NDArray[np.int32]


@register("topk")
class TopK(Coded):
    """Sends the k largest magnitudes, exactly k of them: their places as int32, ascending, then their values.

    Of equal magnitudes the first ones are kept.  NaN and infinity count as largest, hence are always sent.

    Args:
        ratio: the share of the values that is sent: k is ratio·d to the nearest whole number, and at least 1.
        k: their number instead; a shorter vector is sent as a whole.
        dtype: of the values sent: ``fp16`` or ``fp32``.

    Raises:
        ConfigError: both ratio and k are given, one is out of range, or the dtype is unknown.
    """

    def __init__(self, ratio: float | None = None, k: int | None = None, dtype: str = "fp16") -> None:
        if ratio is not None and k is not None:
            raise ConfigError("topk takes either ratio or k, not both")
        if ratio is None and k is None:
            ratio = RATIO
        if ratio is not None and not 0 < ratio <= 1:
            raise ConfigError(f"the ratio of topk must lie in 0 … 1 and not be 0; it is {ratio}")
        if k is not None and k < 1:
            raise ConfigError(f"the k of topk must be at least 1, not {k}")
        encoder = encoder_of(dtype, DTYPES, "topk")
        super().__init__("topk", encoder, linear=False, lossless=False, ratio=ratio, k=k, dtype=dtype)
        self._ratio, self._k = ratio, k

    def wire_bytes(self, d: int) -> int:
        """See `hvdgrab.compression.base.Compressor.wire_bytes`: the header, 4 bytes a place, and k encoded values.

        Raises:
            UsageError: the vector is too long for 32-bit places.
        """
        if d > LARGEST_D:
            raise UsageError(f"topk has 32-bit places and cannot address {d} values; use kind 'sketch', which has no places")
        return super().wire_bytes(d)

    def _most(self) -> int:
        return LARGEST_D

    def _carried(self, d: int) -> int:
        return min(d, max(1, round(self._ratio * d)) if self._ratio is not None else self._k or 0)

    def _body_bytes(self, d: int) -> int:
        k = self._carried(d)
        return 4 * k + self._encoder.nbytes(k)

    def _write(self, values: Floats, body: Bytes) -> None:
        self.wire_bytes(len(values))  # refuses what it cannot address
        k = self._carried(len(values))
        places = largest(values, k)
        np.copyto(body[: 4 * k].view(np.int32), places, casting="same_kind")
        self._encoder.encode(values[places], body[4 * k :])

    def _read(self, bodies: Bytes, out: Floats) -> None:
        m, d = out.shape
        k = self._carried(d)
        places, values = bodies[:, : 4 * k].view(np.int32), np.empty((m, k), dtype=np.float32)
        if k and (places.min() < 0 or places.max() >= d):
            raise PayloadError(f"a damaged payload: it names places outside of 0 … {d - 1}")
        self._encoder.decode(bodies[:, 4 * k :], values)
        out[...] = 0
        out[np.arange(m)[:, None], places] = values

    def _tolerance(self, values: Floats) -> NDArray[np.float64]:
        allowed = np.abs(values.astype(np.float64))
        places = largest(values, self._carried(len(values)))
        allowed[places] = self._encoder.tolerance(values[places])
        return allowed


def largest(values: NDArray[np.float32], k: int) -> Places:
    """Find the places of the k largest magnitudes, ascending: (k,) int64; k <= len(values), which must be contiguous.

    Working memory is O(k), or O(d) if the sample misleads (a few large clusters of near-equal magnitudes).
    """
    d, bits = len(values), values.view(np.int32)
    if k in (0, d):
        return np.arange(k)
    guess = _guess(bits, k) if d > 4 * SAMPLE else 0
    above = _above(bits, guess, most=8 * k + CHUNK)
    if above is not None and len(above) >= k:
        return above[_kept(bits[above] & _MAGNITUDE, k)]
    if above is not None:  # fewer than k exceed the guess; if the guess is the k-th largest itself, equal magnitudes are the rest
        ties = _equal(bits, guess, k - len(above))
        if len(above) + len(ties) == k:
            return np.sort(np.concatenate([above, ties]))
    return _kept(bits & _MAGNITUDE, k)


def _guess(bits: Magnitudes, k: int) -> int:
    """Estimate from a sample a magnitude that slightly more than k values reach; at least 0."""
    d = len(bits)
    sample = bits[np.random.default_rng(0).integers(0, d, SAMPLE)] & _MAGNITUDE
    hits = SAMPLE * k / d
    rank = math.ceil(hits + 4 * math.sqrt(hits) + 4)
    return 0 if rank >= SAMPLE else int(np.partition(sample, SAMPLE - rank)[SAMPLE - rank])


def _above(bits: Magnitudes, threshold: int, most: int) -> Places | None:
    """Find the places of all magnitudes above the threshold, ascending; None if there are more than `most`."""
    found, count = [], 0
    for start, magnitudes in _pieces(bits):
        found.append(np.flatnonzero(magnitudes > np.int32(threshold)) + start)
        count += len(found[-1])
        if count > most:
            return None
    return np.concatenate(found)


def _equal(bits: Magnitudes, magnitude: int, count: int) -> Places:
    """Find the first `count` places of a magnitude, ascending, or all if there are fewer."""
    found: list[Places] = []
    for start, magnitudes in _pieces(bits):
        if count <= 0:
            break
        found.append(np.flatnonzero(magnitudes == np.int32(magnitude))[:count] + start)
        count -= len(found[-1])
    return np.concatenate([*found, np.empty(0, dtype=np.int64)])


def _pieces(bits: Magnitudes) -> Iterator[tuple[int, Magnitudes]]:
    """Yield (start, magnitudes) of the vector's pieces, in memory that the next piece overwrites."""
    scratch = np.empty(min(CHUNK, len(bits)), dtype=np.int32)
    for start in range(0, len(bits), CHUNK):
        piece = bits[start : start + CHUNK]
        yield start, np.bitwise_and(piece, _MAGNITUDE, out=scratch[: len(piece)])


def _kept(magnitudes: Magnitudes, k: int) -> Places:
    """Find the places of the k largest magnitudes, of equal ones the first; ascending."""
    rank = len(magnitudes) - k
    threshold = np.partition(magnitudes, rank)[rank]
    keep = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    keep[ties[: k - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)

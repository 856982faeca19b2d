"""The k largest magnitudes of a vector, exactly, in about one pass: a threshold from a sample, then only its candidates.

Magnitudes are compared as the 31 lower bits of their float32 patterns: whole numbers in the same order, with NaN above
infinity, so that nothing needs special treatment.  What is kept is a function of the values alone: of equal magnitudes the
first ones.  The sample decides only how long it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SAMPLE = 2**15
CHUNK = 2**16
"""Values looked at together; their magnitudes stay in the processor's cache."""
_MAGNITUDE = np.int32(0x7FFFFFFF)

Places = NDArray[np.int64]
Magnitudes = NDArray[np.int32]


def largest(values: NDArray[np.float32], k: int) -> Places:
    """The places of the k largest magnitudes, ascending: (k,) int64; k <= len(values), which must be contiguous.

    Working memory is O(k), unless the sample misleads (a few large clusters of near-equal magnitudes): then it is O(d).
    """
    d, bits = len(values), values.view(np.int32)
    if k in (0, d):
        return np.arange(k)
    guess = _guess(bits, k) if d > 4 * SAMPLE else 0
    above = _above(bits, guess, most=8 * k + CHUNK)
    if above is not None and len(above) >= k:
        return above[_kept(bits[above] & _MAGNITUDE, k)]
    if above is not None:  # so many values exceed the guess; if it is the k-th largest itself, equal ones fill up
        ties = _equal(bits, guess, k - len(above))
        if len(above) + len(ties) == k:
            return np.sort(np.concatenate([above, ties]))
    return _kept(bits & _MAGNITUDE, k)


def _guess(bits: Magnitudes, k: int) -> int:
    """A magnitude that a little more than k values reach, if the sample is like the whole; at least 0."""
    d = len(bits)
    sample = bits[np.random.default_rng(0).integers(0, d, SAMPLE)] & _MAGNITUDE
    hits = SAMPLE * k / d
    rank = math.ceil(hits + 4 * math.sqrt(hits) + 4)
    return 0 if rank >= SAMPLE else int(np.partition(sample, SAMPLE - rank)[SAMPLE - rank])


def _above(bits: Magnitudes, threshold: int, most: int) -> Places | None:
    """The places of all magnitudes above the threshold, ascending; None where there are more than `most`."""
    found, count = [], 0
    for start, magnitudes in _pieces(bits):
        found.append(np.flatnonzero(magnitudes > np.int32(threshold)) + start)
        count += len(found[-1])
        if count > most:
            return None
    return np.concatenate(found)


def _equal(bits: Magnitudes, magnitude: int, count: int) -> Places:
    """The first `count` places of a magnitude, ascending; fewer where there are no more."""
    found: list[Places] = []
    for start, magnitudes in _pieces(bits):
        if count <= 0:
            break
        found.append(np.flatnonzero(magnitudes == np.int32(magnitude))[:count] + start)
        count -= len(found[-1])
    return np.concatenate([*found, np.empty(0, dtype=np.int64)])


def _pieces(bits: Magnitudes) -> Iterator[tuple[int, Magnitudes]]:
    """(start, magnitudes) of the vector's pieces, in memory that each next one overwrites."""
    scratch = np.empty(min(CHUNK, len(bits)), dtype=np.int32)
    for start in range(0, len(bits), CHUNK):
        piece = bits[start : start + CHUNK]
        yield start, np.bitwise_and(piece, _MAGNITUDE, out=scratch[: len(piece)])


def _kept(magnitudes: Magnitudes, k: int) -> Places:
    """The places of the k largest magnitudes, of equal ones the first; ascending."""
    rank = len(magnitudes) - k
    threshold = np.partition(magnitudes, rank)[rank]
    keep = magnitudes > threshold
    ties = np.flatnonzero(magnitudes == threshold)
    keep[ties[: k - np.count_nonzero(keep)]] = True
    return np.flatnonzero(keep)

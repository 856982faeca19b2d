"""Seeded random streams: one `numpy.random.Generator` for every purpose, epoch and rank.

Two streams that differ in any of the five words are independent (`numpy.random.SeedSequence` hashes them into the PCG64
state), so no draw of one purpose can shift the draws of another: every rank rebuilds every stream from the seed alone.
"""

from __future__ import annotations

import enum

import numpy as np

from hvdgrab.errors import UsageError

WORD = 2**32


class Purpose(enum.IntEnum):
    """Purpose of a stream.  The numbers are part of every saved run: never renumber them."""

    RR = 1
    BLOCKS = 2
    SYNC_UNITS = 3
    SYNC_RANKS = 4
    UNITS = 5
    BOUND = 6


def generator(seed: int, purpose: Purpose, epoch: int = 0, rank: int = 0) -> np.random.Generator:
    """Make the stream of (seed, purpose, epoch, rank).

    Args:
        seed: the run's seed, 0 <= seed < 2^64.
        purpose: of the stream.
        epoch: 0 <= epoch < 2^32.
        rank: 0 <= rank < 2^32; 0 if all ranks must draw the same.

    Raises:
        UsageError: a number lies outside its range.
    """
    for name, value, limit in (("seed", seed, WORD * WORD), ("epoch", epoch, WORD), ("rank", rank, WORD)):
        if not 0 <= value < limit:
            raise UsageError(f"{name} must lie in 0 … {limit - 1}, not {value}")
    # a fixed number of 32-bit words: otherwise SeedSequence splits a long seed into words that other seeds share
    words = [int(seed) % WORD, int(seed) // WORD, int(purpose), int(epoch), int(rank)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))

"""``sketch``: the signed fold sketch, which folds a vector of any length into `width` floats, and the compressor that sends it.

It is a count sketch (Charikar, Chen and Farach-Colton, 2002) with structured signs.  Coordinate i lies in row i // buckets and is
added to bucket i mod buckets, `buckets` being the largest prime up to `width`; the values after them are 0.  With 2^k buckets, a
bucket would hold a single column of a matrix that is 2^j wide: on the gradients of the LSTM example, 32 columns wide, inner
products were 2 to 3 times as noisy with 4,096 buckets as with 4,093.

A coordinate's sign is that of its block (64 rows) times that of its place in the pool (row mod 64, bucket).  Coordinates that
share a bucket have pairwise independent signs, hence E‖S(x)‖² = ‖x‖² over the seeds.  A block has one sign: if blocks are alike,
as in a matrix of a million values that is nearly of rank one, inner products of a single seed are up to 10 times as noisy as a
count sketch's (measured: errors of .03–.14 instead of .013), without a visible effect on the orders' bound.

Signs are hashes of (seed, coordinate) alone, independent of device, rank, thread and call.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.compression.coded import Coded
from hvdgrab.compression.encoders import encoder_of
from hvdgrab.compression.registry import register
from hvdgrab.compression.rows import POOL, FoldRows
from hvdgrab.errors import ConfigError, UsageError

WIDTH = 4096
DTYPES = ("int8", "fp32", "fp16", "sign")
_BLOCK_STREAM, _POOL_STREAM = 1, 2


class FoldSketch:
    """Folds vectors into `width` floats; it is linear: the sketch of a difference is the difference of the sketches.

    One instance serves vectors of any length on any device; sign tables are made on first use and kept for each device.

    Args:
        width: floats of the sketch, at least 1.
        seed: 0 <= seed < 2^64; equal on all ranks.

    Raises:
        ConfigError: a width below 1 or a seed out of range.
    """

    def __init__(self, width: int, seed: int = 0) -> None:
        if width < 1:
            raise ConfigError(f"the width of a sketch must be at least 1, not {width}")
        if not 0 <= seed < 2**64:
            raise ConfigError(f"the seed of a sketch must lie in 0 … 2^64 - 1, not {seed}")
        self.width = width
        self.seed = seed
        self.buckets = largest_prime(width)
        """Number of values of a sketch that are used."""
        self.period = POOL * self.buckets
        """Number of coordinates of a block."""
        self._pools: dict[torch.device, torch.Tensor] = {}
        self._blocks: dict[torch.device, torch.Tensor] = {}

    def fold(self, vector: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """Sketch `vector`, whose first element is global coordinate `offset`.

        The sketches of the pieces of a vector, each at its offset, add up to the sketch of the whole vector.  A non-finite
        element makes its bucket non-finite.

        Args:
            vector: (d,) float16, bfloat16, float32 or float64 on any device, d >= 0; read only, never kept.
            offset: global coordinate of the first element.

        Returns:
            (width,) float32 on the vector's device, a new tensor.

        Raises:
            UsageError: wrong shape or dtype, or a negative offset.
        """
        if vector.ndim != 1 or offset < 0:
            raise UsageError(
                f"fold takes a floating-point vector (d,) at an offset of at least 0, not shape {tuple(vector.shape)} at {offset}"
            )
        rows = FoldRows(self, offset + vector.numel(), vector.device)
        rows.add(vector, offset)
        return rows.finish()

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """Sketch `vector` at offset 0."""
        return self.fold(vector)

    def signs(self, count: int, offset: int = 0) -> NDArray[np.int8]:
        """The signs of the global coordinates offset … offset + count - 1: (count,) int8 of +1 and -1; for tests and checks."""
        index = np.arange(offset, offset + count, dtype=np.uint64)
        period = np.uint64(self.period)
        block = hashed_signs(self.seed, _BLOCK_STREAM, index // period)
        return block * hashed_signs(self.seed, _POOL_STREAM, index % period)

    def digest(self) -> str:
        """Hash of the sketch of a fixed vector of whole numbers (hex, 16 characters): equal on ranks whose sketches agree."""
        count = 2 * self.period + 77
        vector = torch.arange(count, dtype=torch.int64).remainder_(17).sub_(8).float()
        return hashlib.sha256(self.fold(vector).numpy().astype("<f4").tobytes()).hexdigest()[:16]

    def pool_signs(self, device: torch.device) -> torch.Tensor:
        """(64, buckets) float32 of +1 and -1 on `device`: the signs inside a block."""
        if device not in self._pools:
            index = np.arange(self.period, dtype=np.uint64)
            table = hashed_signs(self.seed, _POOL_STREAM, index).astype(np.float32)
            self._pools[device] = torch.from_numpy(table).view(POOL, self.buckets).to(device)
        return self._pools[device]

    def block_signs(self, device: torch.device, count: int) -> torch.Tensor:
        """(at least count,) float32 of +1 and -1 on `device`: the signs of the first blocks."""
        if device not in self._blocks or len(self._blocks[device]) < count:
            table = hashed_signs(self.seed, _BLOCK_STREAM, np.arange(count, dtype=np.uint64)).astype(np.float32)
            self._blocks[device] = torch.from_numpy(table).to(device)
        return self._blocks[device]


@register("sketch")
class Sketch(Coded):
    """Sends a linear sketch: the same number of bytes for every model, and unbiased inner products.

    Args:
        width: values of the sketch, at least 1.
        dtype: how a value travels: ``int8``, ``fp32``, ``fp16`` or ``sign``.
        seed: of the sketch's signs; equal on all ranks.

    Raises:
        ConfigError: invalid width, seed or dtype.
    """

    def __init__(self, width: int = WIDTH, dtype: str = "int8", seed: int = 0) -> None:
        encoder = encoder_of(dtype, DTYPES, "sketch")
        super().__init__("sketch", encoder, linear=encoder.lossless, lossless=False, width=width, dtype=dtype, seed=seed)
        self.projection: FoldSketch = FoldSketch(width, seed)

    def width(self, d: int) -> int:  # noqa: ARG002 - equal for every d
        """See `hvdgrab.compression.base.Compressor.width`: the width of the sketch."""
        return self.projection.width


def largest_prime(most: int) -> int:
    """The largest prime up to `most`; `most` itself below 4.  A worked example: 4,096 gives 4,093."""
    candidate = most
    while candidate > 3 and not (candidate % 2 and all(candidate % odd for odd in range(3, math.isqrt(candidate) + 1, 2))):
        candidate -= 1
    return candidate


def hashed_signs(seed: int, stream: int, index: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Hash (seed, stream, index) to +1 or -1 for every index: int8 of the same shape."""
    key = splitmix64(splitmix64(np.array([seed], dtype=np.uint64)) + np.uint64(stream))
    bits = (splitmix64(index ^ key) >> np.uint64(63)).astype(np.int8)
    signs: NDArray[np.int8] = np.int8(1) - np.int8(2) * bits
    return signs


def splitmix64(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply one step of SplitMix64, a bijection of 64-bit words, to every element (Steele, Lea and Flood, OOPSLA 2014)."""
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed

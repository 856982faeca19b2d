"""The signed fold sketch: a vector of any length folded into `width` floats.

A count sketch with structured signs (Charikar, Chen and Farach-Colton, 2002, for the sketch).  Coordinate i lies in row
i // width and falls into bucket i mod width.  Its sign is that of its block (64 rows) times that of its place in the pool
(row mod 64, bucket): coordinates that share a bucket have pairwise independent signs, hence E‖S(x)‖² = ‖x‖².  Signs are
hashes of (seed, coordinate) alone: never of a device, rank, thread or call.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.errors import ConfigError, UsageError

POOL = 64
"""Rows of a block, and sign vectors in the pool."""
CHUNK = 2**18
"""Elements converted to float32 at a time where the input is of another type or not contiguous."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_BLOCK_STREAM, _POOL_STREAM = 1, 2


class FoldSketch:
    """Folds vectors to `width` floats; linear, so that the sketch of a difference is the difference of sketches.

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
        self._pools: dict[torch.device, torch.Tensor] = {}
        self._blocks: dict[torch.device, torch.Tensor] = {}

    def fold(self, vector: torch.Tensor, offset: int = 0) -> torch.Tensor:
        """The sketch of `vector`, whose first element is global coordinate `offset`.

        The sketches of the pieces of a vector, each at its offset, add up to the sketch of the whole.  A non-finite element
        makes its bucket non-finite.

        Args:
            vector: (d,) float16, bfloat16, float32 or float64 on any device, d >= 0; read only, never kept.
            offset: global coordinate of the first element.

        Returns:
            (width,) float32 on the vector's device, a new tensor.

        Raises:
            UsageError: another shape or dtype, or a negative offset.
        """
        if vector.ndim != 1 or vector.dtype not in _FLOATS or offset < 0:
            raise UsageError(
                "fold takes a floating-point vector (d,) at an offset of at least 0, "
                f"not {vector.dtype} of shape {tuple(vector.shape)} at {offset}"
            )
        # In an autocast region the product below would be formed in half precision.
        with torch.no_grad(), torch.autocast(vector.device.type, enabled=False):
            return self._fold(vector.detach(), offset)

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """`fold` at offset 0."""
        return self.fold(vector)

    def signs(self, count: int, offset: int = 0) -> NDArray[np.int8]:
        """The signs of the global coordinates offset … offset + count - 1: (count,) int8 of +1 and -1; for tests and checks."""
        index = np.arange(offset, offset + count, dtype=np.uint64)
        period = np.uint64(POOL * self.width)
        block = hashed_signs(self.seed, _BLOCK_STREAM, index // period)
        return block * hashed_signs(self.seed, _POOL_STREAM, index % period)

    def _fold(self, vector: torch.Tensor, offset: int) -> torch.Tensor:
        period, d = POOL * self.width, vector.numel()
        signs = self._block_signs(vector.device, -(-(offset + d) // period))
        rows = torch.zeros(period, dtype=torch.float32, device=vector.device)
        block, start = divmod(offset, period)
        head = min(d, period - start) if start else 0
        if head:
            rows[start : start + head].add_(vector[:head].float() * signs[block])
            block += 1
        whole = (d - head) // period
        self._add_blocks(rows, vector[head : head + whole * period], signs[block : block + whole])
        tail = head + whole * period
        if tail < d:
            rows[: d - tail].add_(vector[tail:].float() * signs[block + whole])
        return (rows.view(POOL, self.width) * self._pool_signs(vector.device)).sum(0)

    def _add_blocks(self, rows: torch.Tensor, vector: torch.Tensor, signs: torch.Tensor) -> None:
        """Add every whole block, times its sign, to `rows`: one product of the blocks' signs and the (blocks, 64·width) view."""
        direct = vector.dtype == torch.float32 and vector.is_contiguous()
        step = max(1, len(signs) if direct else CHUNK // len(rows))
        for start in range(0, len(signs), step):
            part = signs[start : start + step]
            piece = vector[start * len(rows) : (start + len(part)) * len(rows)]
            rows.addmv_(piece.reshape(len(part), -1).float().t(), part)

    def _pool_signs(self, device: torch.device) -> torch.Tensor:
        if device not in self._pools:
            index = np.arange(POOL * self.width, dtype=np.uint64)
            table = hashed_signs(self.seed, _POOL_STREAM, index).astype(np.float32)
            self._pools[device] = torch.from_numpy(table).view(POOL, self.width).to(device)
        return self._pools[device]

    def _block_signs(self, device: torch.device, count: int) -> torch.Tensor:
        if device not in self._blocks or len(self._blocks[device]) < count:
            table = hashed_signs(self.seed, _BLOCK_STREAM, np.arange(count, dtype=np.uint64)).astype(np.float32)
            self._blocks[device] = torch.from_numpy(table).to(device)
        return self._blocks[device]


def hashed_signs(seed: int, stream: int, index: NDArray[np.uint64]) -> NDArray[np.int8]:
    """+1 or -1 for every index, a function of (seed, stream, index) alone: int8 of the same shape."""
    key = splitmix64(splitmix64(np.array([seed], dtype=np.uint64)) + np.uint64(stream))
    bits = (splitmix64(index ^ key) >> np.uint64(63)).astype(np.int8)
    signs: NDArray[np.int8] = np.int8(1) - np.int8(2) * bits
    return signs


def splitmix64(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of SplitMix64 for every element (Steele, Lea and Flood, OOPSLA 2014): a bijection of 64-bit words."""
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed

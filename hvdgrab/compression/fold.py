"""The signed fold sketch: a vector of any length folded into `width` floats.

A count sketch with structured signs (Charikar, Chen and Farach-Colton, 2002, for the sketch).  Coordinate i lies in row
i // buckets and falls into bucket i mod buckets, where `buckets` is the largest prime up to `width`; the values after them are 0.
With a width of 2^k the columns of a matrix that is 2^j wide would only ever meet themselves: on the gradients of the LSTM
example, 32 columns wide, inner products were 2 to 3 times as noisy with 4,096 buckets as with 4,093.

Its sign is that of its block (64 rows) times that of its place in the pool (row mod 64, bucket): coordinates that share a bucket
have pairwise independent signs, hence E‖S(x)‖² = ‖x‖².  Signs are hashes of (seed, coordinate) alone: never of a device, rank,
thread or call.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.errors import ConfigError, UsageError

POOL = 64
"""Rows of a block, and sign vectors in the pool."""
CHUNK = 2**18
"""Elements converted to float32 at a time where the input is of another type or not contiguous."""
_BAND = 2**16
"""Values that are signed at a time: 256 kB of working memory."""

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
        self.buckets = largest_prime(width)
        """Values of a sketch that are used."""
        self.period = POOL * self.buckets
        """Coordinates of a block."""
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
        if vector.ndim != 1 or offset < 0:
            raise UsageError(
                f"fold takes a floating-point vector (d,) at an offset of at least 0, not shape {tuple(vector.shape)} at {offset}"
            )
        rows = FoldRows(self, offset + vector.numel(), vector.device)
        rows.add(vector, offset)
        return rows.finish()

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """`fold` at offset 0."""
        return self.fold(vector)

    def signs(self, count: int, offset: int = 0) -> NDArray[np.int8]:
        """The signs of the global coordinates offset … offset + count - 1: (count,) int8 of +1 and -1; for tests and checks."""
        index = np.arange(offset, offset + count, dtype=np.uint64)
        period = np.uint64(self.period)
        block = hashed_signs(self.seed, _BLOCK_STREAM, index // period)
        return block * hashed_signs(self.seed, _POOL_STREAM, index % period)

    def digest(self) -> str:
        """What this process makes of a fixed vector of whole numbers (hex, 16 characters): equal where sketches agree."""
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


class FoldRows:
    """The sketch of a vector that comes in pieces: 64·buckets floats at most, whatever the vector's length.

    Every piece is added to the place of its coordinates modulo 64·buckets, with the sign of its block; the signs inside a block
    and the sum over its 64 rows come once, in `finish`.  A piece is read once and never kept.

    Args:
        sketch: gives width and signs.
        dimension: length of the whole vector; a short one needs fewer rows.
        device: of the pieces.
        fused: whether pieces are folded by one Triton kernel each instead of by torch operations; by default on a GPU where
            Triton is installed.  The sums are the same to rounding, and to the bit on whole numbers.
        rows: memory to use (see `rows`), such as that of a vector which is to be sketched where it lies.
    """

    def __init__(
        self,
        sketch: FoldSketch,
        dimension: int,
        device: torch.device,
        *,
        fused: bool | None = None,
        rows: torch.Tensor | None = None,
    ) -> None:
        self.sketch = sketch
        self._device = device
        if fused is None:
            fused = device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self._kernels = importlib.import_module("hvdgrab.compression.kernels") if fused and dimension else None
        self._count = min(POOL, -(-dimension // sketch.buckets))
        self._blocks = sketch.block_signs(device, -(-dimension // sketch.period))
        self._block_list = self._blocks.tolist()
        size = self._count * sketch.buckets
        self.rows = torch.zeros(size, dtype=torch.float32, device=device) if rows is None else rows[:size]
        """(rows·buckets,) float32: the sums so far, before the signs of the pool."""
        self._pool = sketch.pool_signs(device)[: self._count]
        self._host: _HostTable | None = None
        if device.type == "cpu" and size:
            self._host = _HostTable(self.rows.numpy().reshape(self._count, -1), self._pool.numpy())

    def view_of(self, shape: torch.Size, offset: int) -> tuple[torch.Tensor, float] | None:
        """Where a piece of `shape` at `offset` belongs as a whole, and its sign; None if it reaches over the end of a block.

        Adding there costs one call, which the hooks of small parameters can afford.
        """
        block, start = divmod(offset, self.sketch.period)
        if start + shape.numel() > self.sketch.period:
            return None
        return self.rows[start : start + shape.numel()].view(shape), self._block_list[block] if shape.numel() else 1.0

    def add(self, piece: torch.Tensor, offset: int, scale: float = 1.0) -> None:
        """Add scale · `piece`, whose first element is global coordinate `offset`.

        Args:
            piece: any shape, floating point, read in its own (row-major) order; non-contiguous or half-precision ones are
                converted in chunks.
            offset: global coordinate of its first element; the piece must end within the dimension.
            scale: multiplies the piece, e.g. the inverse of a loss scale.

        Raises:
            UsageError: a dtype that is not floating point.
        """
        if piece.dtype not in _FLOATS:
            raise UsageError(f"a sketch takes floating-point vectors, not {piece.dtype}")
        # What follows are in-place operations on detached tensors: neither autograd nor autocast takes part in them.
        if self._kernels is not None and piece.is_contiguous():
            rows = self.rows.view(self._count, self.sketch.buckets)
            self._kernels.fold_pieces(rows, [(piece.detach().view(-1), offset)], self._blocks, scale)
            return
        for flat in _flat_pieces(piece.detach()):
            self._add_flat(flat, offset, scale)
            offset += flat.numel()

    def add_rows(self, indices: torch.Tensor, values: torch.Tensor, offset: int, scale: float = 1.0) -> None:
        """Add scale · some rows of a matrix that starts at global coordinate `offset`; the others are zero.

        Args:
            indices: (k,) int64, which rows; repeated ones are added.
            values: (k, columns) floating point.
            offset: global coordinate of the matrix' first element.
            scale: multiplies the values.
        """
        columns = values.shape[1]
        step = max(1, CHUNK // max(1, columns))
        for start in range(0, len(indices), step):
            first = indices[start : start + step, None] * columns + offset
            places = (first + torch.arange(columns, device=values.device)).reshape(-1)
            signed = values[start : start + step].detach().float().reshape(-1) * self._blocks[places // self.sketch.period]
            # Accumulating index_put_ adds in a fixed order on every device; index_add_ does not on CUDA.
            self.rows.index_put_((places % self.sketch.period,), signed * scale, accumulate=True)

    def finish(self) -> torch.Tensor:
        """The sketch of what was added: (width,) float32, a new tensor.  The sums stay; see `clear`."""
        if self._host is not None and self._kernels is None:
            return torch.from_numpy(self._host.signed_sum(self.sketch.width))
        table = self.rows.view(self._count, self.sketch.buckets)
        result = torch.zeros(self.sketch.width, dtype=torch.float32, device=self._device)
        if self._kernels is not None:
            result[: self.sketch.buckets] = self._kernels.finish(table, self.sketch.pool_signs(self._device))
        elif self._count:
            torch.sum(table * self._pool, 0, out=result[: self.sketch.buckets])
        return result

    def clear(self) -> None:
        """Start the next vector."""
        self.rows.zero_()

    def _add_flat(self, flat: torch.Tensor, offset: int, scale: float) -> None:
        period, d = self.sketch.period, flat.numel()
        block, start = divmod(offset, period)
        head = min(d, period - start) if start or d < period else 0
        if head:
            self.rows[start : start + head].add_(flat[:head], alpha=self._block_list[block] * scale)
            block += 1
        whole = (d - head) // period
        if whole:  # one product of the blocks' signs and the (blocks, 64·buckets) view
            signs = self._blocks[block : block + whole]
            matrix = flat[head : head + whole * period].view(whole, period)
            self.rows.addmv_(matrix.t(), signs, alpha=scale)
        tail = head + whole * period
        if tail < d:
            self.rows[: d - tail].add_(flat[tail:], alpha=self._block_list[block + whole] * scale)


class _HostTable:
    """Signs and sums of rows on the host: NumPy, whose calls cost a fraction of torch's where the model is small."""

    def __init__(self, table: NDArray[np.float32], signs: NDArray[np.float32]) -> None:
        self._table, self._signs = table, signs
        self._signed = np.empty((min(len(table), max(1, _BAND // table.shape[1])), table.shape[1]), dtype=np.float32)

    def signed_sum(self, width: int) -> NDArray[np.float32]:
        """The sum over the rows of row · its signs, then zeros: (width,) float32, new memory."""
        signed, step = self._signed, len(self._signed)
        result = np.zeros(width, dtype=np.float32)
        used = result[: signed.shape[1]]
        np.multiply(self._table[:step], self._signs[:step], out=signed)
        np.add.reduce(signed, axis=0, out=used)
        for start in range(step, len(self._table), step):
            part = self._table[start : start + step]
            used += np.multiply(part, self._signs[start : start + step], out=signed[: len(part)]).sum(axis=0)
        return result


def _flat_pieces(piece: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values in row-major order as contiguous float32 vectors; without a copy where possible, else a chunk at a time."""
    if piece.is_contiguous():
        flat = piece.view(-1)
        if piece.dtype == torch.float32:
            yield flat
            return
        for start in range(0, flat.numel(), CHUNK):
            yield flat[start : start + CHUNK].float()
    elif piece.numel() <= CHUNK or piece.ndim == 0:
        yield piece.float().reshape(-1)
    else:
        step = CHUNK * len(piece) // piece.numel()
        for part in torch.split(piece, step) if step else piece:
            yield from _flat_pieces(part)


def largest_prime(most: int) -> int:
    """The largest prime up to `most`; `most` itself below 4.  A worked example: 4,096 gives 4,093."""
    candidate = most
    while candidate > 3 and not (candidate % 2 and all(candidate % odd for odd in range(3, math.isqrt(candidate) + 1, 2))):
        candidate -= 1
    return candidate


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

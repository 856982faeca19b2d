"""The sums of a fold sketch: 64 rows to which the pieces of a vector of any length are added as they come."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.errors import UsageError

if TYPE_CHECKING:
    from hvdgrab.compression.fold import FoldSketch

POOL = 64
"""Rows of a block, and sign vectors in the pool."""
CHUNK = 2**18
"""Elements converted to float32 at a time if the input is of another type or not contiguous."""
_BAND = 2**16
"""Values signed at a time: 256 kB of working memory."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class FoldRows:
    """Sketches a vector that comes in pieces, in at most 64·buckets floats, whatever the vector's length.

    Every piece is added at its coordinates modulo 64·buckets, with the sign of its block; `finish` applies the signs inside a
    block and adds up its 64 rows.  A piece is read once and never kept.

    Args:
        sketch: gives width and signs.
        dimension: length of the whole vector; a short one needs fewer rows.
        device: of the pieces.
        fused: whether one Triton kernel folds each piece instead of torch operations; by default on a GPU if Triton is installed.
            The sums are equal except for rounding, and equal bit for bit on whole numbers.
        rows: memory for the attribute `rows`, such as that of a vector to be sketched in place.
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
        """The part of `rows` to which a piece of `shape` at `offset` is added, and its sign; None if it crosses the end of a
        block.

        With it, adding costs a single call, cheap enough for the hooks of small parameters.
        """
        block, start = divmod(offset, self.sketch.period)
        if start + shape.numel() > self.sketch.period:
            return None
        return self.rows[start : start + shape.numel()].view(shape), self._block_list[block] if shape.numel() else 1.0

    def add(self, piece: torch.Tensor, offset: int, scale: float = 1.0) -> None:
        """Add scale · `piece`, whose first element has global coordinate `offset`.

        Args:
            piece: any shape, floating point, read in row-major order; converted in chunks if it is non-contiguous or in half
                precision.
            offset: global coordinate of its first element; the piece must end within the dimension.
            scale: multiplies the piece, e.g. the inverse of a loss scale.

        Raises:
            UsageError: a dtype that is not floating point.
        """
        if piece.dtype not in _FLOATS:
            raise UsageError(f"a sketch takes floating-point vectors, not {piece.dtype}")
        # in-place operations on detached tensors, in which neither autograd nor autocast takes part
        if self._kernels is not None and piece.is_contiguous():
            rows = self.rows.view(self._count, self.sketch.buckets)
            self._kernels.fold_pieces(rows, [(piece.detach().view(-1), offset)], self._blocks, scale)
            return
        for flat in _flat_pieces(piece.detach()):
            self._add_flat(flat, offset, scale)
            offset += flat.numel()

    def add_rows(self, indices: torch.Tensor, values: torch.Tensor, offset: int, scale: float = 1.0) -> None:
        """Add scale · a matrix of which some rows are given and the others are zero.

        Args:
            indices: (k,) int64, the given rows; repeated ones are added.
            values: (k, columns) floating point.
            offset: global coordinate of the matrix's first element.
            scale: multiplies the values.
        """
        columns = values.shape[1]
        step = max(1, CHUNK // max(1, columns))
        for start in range(0, len(indices), step):
            first = indices[start : start + step, None] * columns + offset
            places = (first + torch.arange(columns, device=values.device)).reshape(-1)
            signed = values[start : start + step].detach().float().reshape(-1) * self._blocks[places // self.sketch.period]
            # accumulating index_put_ adds in a fixed order on every device; index_add_ does not on CUDA
            self.rows.index_put_((places % self.sketch.period,), signed * scale, accumulate=True)

    def finish(self) -> torch.Tensor:
        """Compute the sketch of what was added: (width,) float32, a new tensor.  The sums stay until `clear`."""
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
        """Set the sums to zero, for the next vector."""
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
    """Signs and sums of rows on the host, in NumPy, whose calls cost a fraction of torch's for small models."""

    def __init__(self, table: NDArray[np.float32], signs: NDArray[np.float32]) -> None:
        self._table, self._signs = table, signs
        self._signed = np.empty((min(len(table), max(1, _BAND // table.shape[1])), table.shape[1]), dtype=np.float32)

    def signed_sum(self, width: int) -> NDArray[np.float32]:
        """Sum row · its signs over the rows, and append zeros: (width,) float32, new memory."""
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
    """Yield the values in row-major order as contiguous float32 vectors, without a copy if possible, else a chunk at a time."""
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

"""The fold sketch as Triton kernels: one launch folds a whole bucket of gradients, asynchronously.

The accumulator `rows` (64, width) float32 is one period of the sketch: global coordinate i adds block_sign[i // period] · g_i to
rows.view(-1)[i mod period], period = 64·width.  A vector of at most r·width < 64·width coordinates needs only r rows.  `finish`
multiplies by the pool's signs and adds the rows up.  The result equals that of `FoldSketch.fold` except for rounding, and bit for
bit on integer-valued gradients.  Each program owns places of the accumulator and takes pieces and blocks in a fixed order,
without atomics: the result depends on the pieces and their order alone.

No call waits for the device; all launches are on the current stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvdgrab.compression.rows import POOL
from hvdgrab.errors import UsageError
from hvdgrab.gpu import check_device, import_programs, on_device

Piece = tuple[torch.Tensor, int]
"""A gradient (n,) and the global coordinate of its first element."""

POSITIONS, BLOCKS, COLUMNS = 512, 4, 128
"""Places of the accumulator that a program owns, blocks that it takes at a time, columns of the finished sketch."""

_ELEMENTS = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}


def fold_pieces(
    rows: torch.Tensor, pieces: Sequence[Piece], block_signs: torch.Tensor, alpha: float | torch.Tensor = 1.0
) -> None:
    """Add alpha times the pieces to the accumulator, one launch for each dtype among them.

    A worked example, width 1, hence a period of 64: the piece ([5, 7, 9], start 63) with block signs [+1, −1] adds 5 to place 63,
    −7 to place 0 and −9 to place 1.

    Args:
        rows: (64, width) float32, contiguous, on a CUDA device; updated in place.  (r, width) if no coordinate reaches r·width.
        pieces: contiguous vectors (n,) float32, float16, bfloat16 or float64 on the same device, n >= 0, each with the global
            coordinate of its first element.  Read by the launches only: they may be freed or changed on this stream afterwards.
        block_signs: (blocks,) float32 or int8 on the device, +1 or −1 for every block up to the last coordinate.
        alpha: a number, or one float32 on the device, such as the inverse of a loss scale that the host has not read.

    Raises:
        ConfigError: Triton is not installed.
        UsageError: wrong shape, dtype, layout or device, or too few block signs.
    """
    programs = import_programs("hvdgrab.compression.programs")
    width = _check_rows(rows)
    for tensor, start in pieces:
        _check_piece(tensor, start, rows, block_signs)
    if isinstance(alpha, torch.Tensor):
        _check_scale(alpha, rows)
    else:
        alpha = float(alpha)
    check_device(programs.fold, rows.device)
    with on_device(rows):
        for dtype, element in _ELEMENTS.items():
            same = [(tensor, start) for tensor, start in pieces if tensor.dtype == dtype and len(tensor)]
            table = [(tensor.data_ptr(), start, len(tensor)) for tensor, start in same]
            if table:
                programs.fold[(_programs_of(rows.numel()),)](
                    rows, _to_device(table, rows.device), block_signs, alpha, len(table), rows.numel(), POOL * width,
                    ELEMENT=getattr(programs.tl, element), ALPHA_ON_DEVICE=isinstance(alpha, torch.Tensor),
                    POSITIONS=POSITIONS, BLOCKS=BLOCKS,
                )  # fmt: skip


def finish(rows: torch.Tensor, pool_signs: torch.Tensor) -> torch.Tensor:
    """Compute the sketch of everything that was folded into `rows`.

    Args:
        rows: (r, width) float32, contiguous, on a CUDA device, r <= 64.
        pool_signs: (64, width) float32 or int8, contiguous, on the device.

    Returns:
        (width,) float32 on the device: the sum over the rows of row · its signs.

    Raises:
        ConfigError: Triton is not installed.
        UsageError: wrong shape, dtype, layout or device.
    """
    programs = import_programs("hvdgrab.compression.programs")
    width = _check_rows(rows)
    if pool_signs.shape != (POOL, width) or not pool_signs.is_contiguous():
        raise UsageError(f"the pool's signs must be contiguous, of shape {(POOL, width)}, not {tuple(pool_signs.shape)}")
    _check_signs(pool_signs, rows)
    check_device(programs.add_rows, rows.device)
    sketch = rows.new_empty(width)
    with on_device(rows):
        programs.add_rows[(-(-width // COLUMNS),)](rows, pool_signs, sketch, len(rows), width, COLUMNS=COLUMNS, num_warps=1)
    return sketch


def _programs_of(places: int) -> int:
    return -(-places // POSITIONS)


def _to_device(table: list[tuple[int, int, int]], device: torch.device) -> torch.Tensor:
    """Copy a table to the device, (n, 3) int64, from pinned memory: a copy from other memory may wait for the device."""
    host = torch.tensor(table, dtype=torch.int64, pin_memory=device.type == "cuda")
    return host.to(device, non_blocking=True)


def _check_rows(rows: torch.Tensor) -> int:
    """Check the accumulator and return its width."""
    fits = rows.ndim == 2 and 1 <= rows.shape[0] <= POOL and rows.shape[1] > 0
    if not fits or rows.dtype != torch.float32 or not rows.is_contiguous():
        raise UsageError(f"rows must be a contiguous (1 … {POOL}, width) float32, not {rows.dtype} of shape {tuple(rows.shape)}")
    return rows.shape[1]


def _check_piece(tensor: torch.Tensor, start: int, rows: torch.Tensor, block_signs: torch.Tensor) -> None:
    if tensor.ndim != 1 or tensor.dtype not in _ELEMENTS or not tensor.is_contiguous() or start < 0:
        raise UsageError(
            "a piece must be a contiguous vector of float32, float16, bfloat16 or float64 at a coordinate of at least 0, "
            f"not {tensor.dtype} of shape {tuple(tensor.shape)} at {start}"
        )
    if tensor.device != rows.device:
        raise UsageError(f"a piece is on {tensor.device}, the accumulator on {rows.device}")
    _check_signs(block_signs, rows)
    end, period = start + len(tensor), POOL * rows.shape[1]
    if end > rows.numel() < period:
        raise UsageError(f"{len(rows)} rows of {rows.shape[1]} hold no coordinate {end - 1}: take {POOL} rows")
    needed = -(-end // period)
    if block_signs.ndim != 1 or not block_signs.is_contiguous() or len(block_signs) < needed:
        raise UsageError(f"{needed} block signs are needed, not {tuple(block_signs.shape)}")


def _check_signs(signs: torch.Tensor, rows: torch.Tensor) -> None:
    if signs.dtype not in (torch.float32, torch.int8) or signs.device != rows.device:
        raise UsageError(f"signs must be float32 or int8 on {rows.device}, not {signs.dtype} on {signs.device}")


def _check_scale(alpha: torch.Tensor, rows: torch.Tensor) -> None:
    if alpha.numel() != 1 or alpha.dtype != torch.float32 or alpha.device != rows.device:
        found = f"{alpha.numel()} {alpha.dtype} on {alpha.device}"
        raise UsageError(f"alpha must be a number or one float32 on {rows.device}, not {found}")

"""PairBalance as Triton kernels, in block Gram form.

For a block of B rows D (B, d) the products c = D·h and G = D·Dᵀ give all B signs without reading the rows again: s_i from c_i,
then c_j += s_i·G_ij for j > i, then h += Dᵀ·s.  These are the signs of the literal rule (CD-GraB: Cooper et al., NeurIPS 2023,
arXiv 2302.00845, algorithm 1), unless <h, d> is within rounding of zero.  The update of one block and the products of the next
are one pass: 2 + 2/B streams of d floats a row, against 5 of the literal loop.  For up to `Tiles.resident` columns, one program
keeps h in registers instead and runs the literal loop: one launch a call.

No call waits for the device; all launches are on the current stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdgrab.balance.arrays import check_input
from hvdgrab.gpu import check_device, import_programs, on_device

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Tiles:
    """How the work is divided.  Sums depend on this and on shapes, never on the device; signs only within rounding of zero.

    `rows`, `chunk` and `programs` are powers of two.
    """

    rows: int = 8
    """Rows of a block (B)."""
    chunk: int = 512
    """Columns that a program takes at a time."""
    programs: int = 1024
    """Most programs of a pass, and thus most partial sums of a product."""
    resident: int = 8192
    """Most columns for which one program keeps the running sum in registers; 0: never."""


def balance(
    differences: torch.Tensor, running_sum: torch.Tensor, tiles: Tiles | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decide the sign of every row, in the order given, and add the signed rows to the running sum.

    A worked example::

        h = [0, 0];  d = [1, 0]: <h, d> =  0 -> +1, h = [ 1, 0]
                     d = [2, 1]: <h, d> =  2 -> -1, h = [-1, -1]
                     d = [1, 1]: <h, d> = -2 -> +1, h = [ 0, 0]

    A row whose product with h is not finite (NaN or infinity in the row, or float32 overflow) is dropped: sign +1, h untouched.
    A running sum that is not finite drops every row, because a check would wait for the device.

    Args:
        differences: (m, d) float16, bfloat16, float32 or float64, any strides, on a CUDA device; read as float32.
        running_sum: (d,) float32 on the same device, finite, any stride; updated in place.  Shares no memory with `differences`.
        tiles: how the work is divided; None: the default.

    Returns:
        signs (m,) int8 of +1 and -1, and dropped (m,) bool, on that device.

    Raises:
        ConfigError: Triton is not installed.
        UsageError: wrong shape, dtype or device.
    """
    programs = import_programs("hvdgrab.balance.backends.programs")
    tiles = tiles or Tiles()
    check_input(differences, running_sum)
    check_device(programs.decide, running_sum.device)
    m, d = differences.shape
    signs, dropped = _decisions(m, running_sum.device)
    if m and d:
        with on_device(running_sum):
            if d <= tiles.resident:
                _launch_resident(programs, differences, running_sum, signs, dropped)
            else:
                _launch_blocks(programs, differences, running_sum, signs, dropped, tiles)
    return signs, dropped.view(_torch().bool)


def warm_up(d: int, dtype: torch.dtype, device: torch.device | str, tiles: Tiles | None = None) -> None:
    """Compile what `balance` will launch for contiguous rows of d elements; Triton keeps compiled programs on disk.

    Takes memory for one row, and waits for the device, so that an error is raised here.

    Args:
        d: columns.
        dtype: of the rows.
        device: a CUDA device.
        tiles: as `balance` will be given.

    Raises:
        ConfigError: Triton is not installed.
        UsageError: wrong dtype or device.
    """
    torch = _torch()
    count = 2 * (tiles or Tiles()).rows  # two blocks: a first pass, one between blocks, a last one
    # Triton compiles for row strides that are, or are not, multiples of 16; the rows may overlap
    stride = 0 if d % 16 == 0 else 3
    row = torch.zeros(d + stride * count, dtype=dtype, device=device)
    balance(row.as_strided((count, d), (stride, 1)), torch.zeros(d, dtype=torch.float32, device=device), tiles)
    if row.is_cuda:
        torch.cuda.synchronize(row.device)


def _launch_resident(
    programs: Any, differences: torch.Tensor, running_sum: torch.Tensor, signs: torch.Tensor, dropped: torch.Tensor
) -> None:
    m, d = differences.shape
    width = _power_of_two(d)
    programs.resident[(1,)](
        differences, running_sum, signs, dropped, m, d, *differences.stride(), running_sum.stride(0),
        WIDTH=width, num_warps=max(1, min(16, width // 256)),
    )  # fmt: skip


def _launch_blocks(
    programs: Any,
    differences: torch.Tensor,
    running_sum: torch.Tensor,
    signs: torch.Tensor,
    dropped: torch.Tensor,
    tiles: Tiles,
) -> None:
    """Launch two programs a block, one over the columns and one that decides, and a last one to update for the last block."""
    m, d = differences.shape
    strides = (*differences.stride(), running_sum.stride(0))
    chunks = -(-d // tiles.chunk)
    parts = min(chunks, tiles.programs)
    coefficients = running_sum.new_empty(tiles.rows)
    partials = running_sum.new_empty((tiles.rows + 1) * tiles.rows * parts)
    shape = {"ROWS": tiles.rows, "CHUNK": tiles.chunk}
    for begin in range(0, m + tiles.rows, tiles.rows):
        update, multiply = begin > 0, begin < m
        programs.update_and_multiply[(parts,)](
            differences, running_sum, coefficients, partials, begin, m, d, chunks, *strides,
            UPDATE=update, MULTIPLY=multiply, **shape, num_warps=8,
        )  # fmt: skip
        if multiply:
            programs.decide[(1,)](
                differences, running_sum, coefficients, partials, signs, dropped, begin, m, d, chunks, parts, *strides,
                PARTS=_power_of_two(parts), **shape, num_warps=8,
            )  # fmt: skip
        else:
            break


def _torch() -> Any:
    import torch

    return torch


def _decisions(m: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The result if nothing is launched: signs of +1, and nothing dropped."""
    torch = _torch()
    return torch.ones(m, dtype=torch.int8, device=device), torch.zeros(m, dtype=torch.uint8, device=device)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()

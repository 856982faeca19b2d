"""Vectors of any kind, type, stride and device as blocks of contiguous rows on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, to_numpy

BLOCK = 2**18
"""Elements of a converted block: 1 MiB of float32, so that the block is still in the cache when it is balanced."""
GROUP = 4
"""Rows that the compiled loop takes at once; blocks hold a multiple of it."""


def host_blocks(differences: Array, dtype: Any) -> Iterator[NDArray[Any]]:
    """The rows in order, as C-contiguous (b, d) host arrays of `dtype`; input that is so already comes back whole, not copied.

    Everything else is converted a block at a time: at most `BLOCK` elements, but at least four rows.  A block is valid until
    the next one is asked for.
    """
    if not isinstance(differences, np.ndarray) and differences.device.type == "cpu" and differences.element_size() > 2:
        differences = to_numpy(differences, "differences")  # A view: nothing is copied.
    if isinstance(differences, np.ndarray) and differences.dtype == dtype and _ready(differences):
        yield differences
        return
    m, d = differences.shape
    rows = max(GROUP, BLOCK // max(1, d) // GROUP * GROUP)
    buffer = np.empty((min(rows, m), d), dtype=dtype)
    for start in range(0, m, rows):
        part = differences[start : start + rows]
        block = buffer[: len(part)]
        with np.errstate(over="ignore", invalid="ignore"):
            _convert(part, block)
        yield block


def _ready(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative


def _convert(part: Array, block: NDArray[Any]) -> None:
    if isinstance(part, np.ndarray):
        np.copyto(block, part, casting="same_kind")
        return
    import torch

    torch.from_numpy(block).copy_(part.detach())

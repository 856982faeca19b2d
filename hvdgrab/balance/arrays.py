"""NumPy arrays and torch tensors alike, without importing torch: a process that has not loaded torch holds no tensor."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from hvdgrab.errors import UsageError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Union[NDArray[Any], "torch.Tensor"]
BLOCK = 2**18
"""Elements of a converted block: 1 MiB of float32, so that the block is still in the cache when it is balanced."""
GROUP = 4
"""Rows that the compiled loop takes at once; blocks hold a multiple of it."""


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Array, name: str) -> NDArray[Any]:
    """`value` as a NumPy array: itself, or the memory of a tensor on the host, else a copy.

    bfloat16, which NumPy lacks, becomes float32.

    Raises:
        UsageError: `value` is neither a NumPy array nor a torch tensor.
    """
    if isinstance(value, np.ndarray):
        return value
    if not is_torch(value):
        raise UsageError(f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}")
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    array: NDArray[Any] = tensor.numpy()
    return array


def like(result: NDArray[Any], model: Array) -> Any:
    """Return `result` as NumPy if `model` is NumPy, else as a torch tensor on the device of `model`."""
    if isinstance(model, np.ndarray):
        return result
    return sys.modules["torch"].from_numpy(result).to(model.device)


def host_blocks(differences: Array, dtype: Any) -> Iterator[NDArray[Any]]:
    """Yield the rows in order, as C-contiguous (b, d) host arrays of `dtype`; input that is like this already is yielded whole.

    Everything else is converted a block at a time: at most `BLOCK` elements, but at least four rows.  The next block
    overwrites the last.
    """
    if not isinstance(differences, np.ndarray) and differences.device.type == "cpu" and differences.element_size() > 2:
        differences = to_numpy(differences, "differences")  # a view: nothing is copied
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

"""NumPy arrays and torch tensors alike: checks, conversion, and blocks of rows.

This does not import torch: a process that has not loaded torch holds no tensor.
"""

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


def check_kind(name: str, value: object) -> None:
    """Raise UsageError unless `value` is a NumPy array or a torch tensor."""
    if not isinstance(value, np.ndarray) and not is_torch(value):
        raise UsageError(f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}")


def to_numpy(value: Array, name: str) -> NDArray[Any]:
    """`value` as a NumPy array: itself, or the memory of a tensor on the host, else a copy.

    bfloat16, which NumPy lacks, becomes float32.

    Raises:
        UsageError: `value` is neither a NumPy array nor a torch tensor.
    """
    if isinstance(value, np.ndarray):
        return value
    check_kind(name, value)
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


def device_of(array: Array) -> str:
    """The device type of a tensor; "cpu" for NumPy arrays."""
    return "cpu" if isinstance(array, np.ndarray) else str(array.device.type)


def check_rows(differences: Array, running_sum: Array) -> None:
    """Raise UsageError unless `differences` is a (m, d) floating-point array or tensor apart from the (d,) running sum."""
    check_kind("differences", differences)
    if differences.ndim != 2 or running_sum.ndim != 1 or differences.shape[1] != running_sum.shape[0]:
        raise UsageError(
            "differences must be (m, d) and running_sum (d,), "
            f"not {tuple(differences.shape)} and {tuple(running_sum.shape)}"
        )
    given = _dtype(differences)
    if given not in ("float16", "bfloat16", "float32", "float64"):
        raise UsageError(f"differences must be float32 (or float16, bfloat16, float64), not {given}")
    if device_of(differences) == device_of(running_sum) == "cpu":
        _check_overlap(differences, running_sum)


def check_input(differences: Array, running_sum: Array) -> None:
    """Raise UsageError unless the arguments are those of `hvdgrab.balance.pair_balance`."""
    check_kind("differences", differences)
    check_kind("running_sum", running_sum)
    if is_torch(differences) != is_torch(running_sum):
        raise UsageError("differences and running_sum must both be NumPy arrays or both torch tensors")
    check_rows(differences, running_sum)
    if _dtype(running_sum) != "float32":
        raise UsageError(f"running_sum must be float32, because it is updated in place; it is {_dtype(running_sum)}")
    if isinstance(running_sum, np.ndarray):
        if not running_sum.flags.writeable:
            raise UsageError("running_sum is read-only, but it is updated in place")
    elif differences.device != running_sum.device:
        raise UsageError(f"differences are on {differences.device}, running_sum on {running_sum.device}: move one of them")


def _dtype(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _check_overlap(differences: Array, running_sum: Array) -> None:
    kept = to_numpy(running_sum, "running_sum")
    ends = {0, len(differences) - 1} if len(differences) else set()
    if any(np.may_share_memory(to_numpy(differences[i], "differences"), kept) for i in ends):
        raise UsageError("running_sum shares memory with differences: updating it would change rows still to come; copy it")


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

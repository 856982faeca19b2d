"""NumPy arrays and torch tensors alike, without importing torch: who has no torch loaded cannot hold a tensor."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from hvdgrab.errors import UsageError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Union[NDArray[Any], "torch.Tensor"]


def is_torch(value: object) -> bool:
    """Whether `value` is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Array, name: str) -> NDArray[Any]:
    """`value` as a NumPy array: itself, or the tensor's memory where that lies on the host, else a copy.

    bfloat16, which NumPy lacks, becomes float32.

    Raises:
        UsageError: neither a NumPy array nor a torch tensor.
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
    """The NumPy `result` as what `model` is: NumPy, or a torch tensor on the same device."""
    if isinstance(model, np.ndarray):
        return result
    return sys.modules["torch"].from_numpy(result).to(model.device)

"""What all Triton kernels share: how their modules are imported, and where they run.

Triton is imported by nobody before the first kernel is asked for.  With TRITON_INTERPRET=1 set before that, Triton runs the same
programs through its interpreter, on the host: for tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hvdgrab.errors import ConfigError, UsageError

if TYPE_CHECKING:
    import torch

TRITON = (3, 3)
"""Oldest release whose programs may hold tuples."""


def import_programs(module: str) -> Any:
    """The module of Triton programs of that name, imported.

    Raises:
        ConfigError: Triton is not installed, or is too old.
    """
    wanted = ".".join(map(str, TRITON))
    try:
        triton = importlib.import_module("triton")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ConfigError(
            f"{module} needs Triton, which is not installed: `pip install 'triton>={wanted}'`, or choose another backend"
        ) from error
    found = str(triton.__version__)
    if tuple(int(part) for part in found.split(".")[:2]) < TRITON:
        raise ConfigError(f"{module} needs Triton {wanted} or newer, found {found}: `pip install -U triton`")
    return importlib.import_module(module)


def on_device(tensor: torch.Tensor) -> Any:
    """A context in which the tensor's GPU is the current one, where Triton launches; nothing for a tensor on the host."""
    cuda: Any = importlib.import_module("torch.cuda")
    return cuda.device_of(tensor)


def check_device(program: Any, device: torch.device) -> None:
    """Kernels run on a GPU, and on the host where Triton's interpreter is on.

    Args:
        program: any of the programs that are to be launched.
        device: where the tensors lie.

    Raises:
        UsageError: the tensors lie elsewhere.
    """
    # The class says which way the program was decorated; the variable may have been changed since.
    interpreted = type(program).__name__ == "InterpretedFunction"
    if device.type != "cuda" and not (interpreted and device.type == "cpu"):
        raise UsageError(f"Triton kernels need tensors on a CUDA device, not on {device}: move them, or choose another backend")

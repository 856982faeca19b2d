"""How the modules of Triton kernels are imported, and on which device kernels run.

Nothing imports Triton before the first kernel is launched.  If TRITON_INTERPRET=1 is set before that, Triton interprets the same
programs on the host, for tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hvdgrab.errors import ConfigError, UsageError

if TYPE_CHECKING:
    import torch

TRITON = (3, 3)
"""Oldest release that supports tuples in programs."""


def import_programs(module: str) -> Any:
    """Import a module of Triton programs.

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
    """Context in which the tensor's GPU is the current one, on which Triton launches; no effect for a tensor on the host."""
    cuda: Any = importlib.import_module("torch.cuda")
    return cuda.device_of(tensor)


def check_device(program: Any, device: torch.device) -> None:
    """Check that kernels can run on a device: a GPU, or the host if Triton's interpreter is on.

    Args:
        program: any of the programs to launch.
        device: of the tensors.

    Raises:
        UsageError: kernels cannot run there.
    """
    # the class tells how the program was decorated; the variable may have changed since
    interpreted = type(program).__name__ == "InterpretedFunction"
    if device.type != "cuda" and not (interpreted and device.type == "cpu"):
        raise UsageError(f"Triton kernels need tensors on a CUDA device, not on {device}: move them, or choose another backend")

"""Coordinated data ordering for Horovod.

Importing the package is cheap: torch, Horovod and MPI are imported when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvdgrab.config import GraBConfig
    from hvdgrab.errors import HvdGrabError
    from hvdgrab.server import init
    from hvdgrab.training.job import StopSignal, mark_finished
    from hvdgrab.training.optimizer import GraBOptimizer
    from hvdgrab.training.sampler import GraBSampler

__version__ = "0.1.0"
__all__ = ["GraBConfig", "GraBOptimizer", "GraBSampler", "HvdGrabError", "StopSignal", "__version__", "init", "mark_finished"]

_HOME = {
    "GraBConfig": "hvdgrab.config",
    "GraBOptimizer": "hvdgrab.training.optimizer",
    "GraBSampler": "hvdgrab.training.sampler",
    "HvdGrabError": "hvdgrab.errors",
    "StopSignal": "hvdgrab.training.job",
    "init": "hvdgrab.server",
    "mark_finished": "hvdgrab.training.job",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hvdgrab' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

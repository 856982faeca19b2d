"""How much disk a set-up takes, looked at before it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.bootstrap.errors import BootstrapError

GB = 1e9
ENVIRONMENT_BYTES = 2.0 * GB
"""Measured: 1.7 GB with the CPU build of torch 2.13 and all extras."""

CUDA_BYTES = 8.0 * GB
"""What a CUDA build of torch adds with its libraries."""

BUILD_BYTES = 0.7 * GB
"""Measured: Horovod's sources, object files, tools and wheel at the end of its build: 0.5 GB."""


def existing_parent(path: Path) -> Path:
    """The nearest folder at or above `path` that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def require_space(
    needs: Mapping[Path, float],
    free_of: Callable[[Path], os.statvfs_result] = os.statvfs,
    device_of: Callable[[Path], int] = lambda path: path.stat().st_dev,
) -> None:
    """Check that every folder's disk has room; needs on one disk are added up.

    Args:
        needs: Bytes by folder; folders need not exist yet.
        free_of: Tells a file system's free space (a test's stand-in for `os.statvfs`).
        device_of: Tells which file system a folder is on.

    Raises:
        BootstrapError: One has too little; the sentence says how much there is and how much is needed.
    """
    wanted: dict[int, tuple[Path, float]] = {}
    for folder, size in needs.items():
        place = existing_parent(folder)
        device = device_of(place)
        first, total = wanted.get(device, (place, 0.0))
        wanted[device] = (first, total + size)
    for place, size in wanted.values():
        state = free_of(place)
        free = state.f_bavail * state.f_frsize
        if free < size:
            raise BootstrapError(
                f"no disk space: {free / GB:.1f} GB are free at {place}, and the set-up needs about {size / GB:.1f} GB there; "
                "free some, or use other places: VENV=DIR, HVDGRAB_CACHE=DIR"
            )

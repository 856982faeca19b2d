"""A private directory for compiled code, where neither the package nor the home directory can be written."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def private_directory(parent: Path) -> Path | None:
    """A directory of this user alone below `parent` (mode 0700), made if it is not there; None where that cannot be had.

    Compiled code is loaded from it: a directory that somebody else could write to is refused.
    """
    path = parent / f"hvdgrab-numba-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    own = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return path if own else None

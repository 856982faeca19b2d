"""Small files that others read while they are written: replaced in one step, or made exactly once.

Standard library only: the wrapper around every rank imports it.  Nothing here relies on locks, so that it holds on file systems
that several hosts share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a file so that a reader sees the old content or the new, never half of it.

    Args:
        path: the file; its directory exists.
        text: ASCII.
        durable: whether it must survive a power failure.

    Raises:
        OSError: where the system refuses; the old content then stays.
    """
    temporary = _beside(path)
    try:
        _write(temporary, text, durable)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def create_once(path: Path, text: str) -> bool:
    """Make a file with its whole content, if it is not there.  Returns whether this call made it.

    Of any number of callers on any hosts one gets True.  A hard link is the step that decides (NFS repeats requests, so the count
    of links is asked instead of the answer); file systems without links get an exclusive creation.

    Raises:
        OSError: where the system refuses.
    """
    temporary = _beside(path)
    try:
        _write(temporary, text, durable=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return temporary.stat().st_nlink == 2
        except OSError:
            return _create_exclusively(path, text) if temporary.stat().st_nlink != 2 else True
        return True
    finally:
        temporary.unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none, or no whole one."""
    try:
        data = json.loads(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def as_text(data: Mapping[str, Any]) -> str:
    """An object as one line of ASCII."""
    return json.dumps(data) + "\n"


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")


def _write(path: Path, text: str, durable: bool) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _create_exclusively(path: Path, text: str) -> bool:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(text)
    return True

"""Small files that others read while they are written: replaced in one step, or made exactly once; and where files lie.

Standard library only: the wrapper around every rank imports it.  Nothing here relies on locks, so that it holds on file systems
that several hosts share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeVar

RESERVE = ".reserve"
RESERVED = 4096
"""Bytes: a block of most file systems."""
MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "pvfs2", "orangefs"),
        *("glusterfs", "panfs", "wekafs", "ocfs2", "gfs2", "pnfs", "daos"),
    )
)
"""Types of file systems that several hosts share."""
_FUSE_NETWORK = ("sshfs", "gluster", "s3fs", "ceph", "gcsfuse", "rclone", "juicefs", "davfs", "weka")
T = TypeVar("T")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (float, int), "bool": (bool,), "None": (type(None),), "tuple": (tuple,),
}  # fmt: skip
"""What JSON holds for the words of a field's annotation."""


def replace_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Write a file so that a reader sees the old content or the new, never half of it.

    Args:
        path: the file; its directory exists.
        text: ASCII.
        durable: whether it must survive a power failure.

    On a full disk the space that the file has, or that `reserve` has kept, is written over; that takes no new space.

    Raises:
        OSError: if the system refuses; the old content then stays.
    """
    temporary = _beside(path)
    try:
        _write(temporary, text, durable)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not _write_over(path, text):
            error.filename = str(path)  # the system names no file if writing fails and not opening
            raise


def open_own(path: Path, flags: int) -> TextIO:
    """Open a small file of a job for writing, and make it: others may read it if the umask lets them, and never write.

    Args:
        path: the file; a link is not followed.
        flags: O_TRUNC, or O_APPEND.

    Raises:
        OSError: if the system refuses, or it is a link.
    """
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o644)
    return os.fdopen(number, "w", encoding="ascii")


def reserve(folder: Path) -> None:
    """Keep the space of one small file in a directory, for the time when the disk is full."""
    with contextlib.suppress(OSError):
        (folder / RESERVE).write_bytes(b" " * RESERVED)


def release(folder: Path) -> None:
    """Give the space back."""
    with contextlib.suppress(OSError):
        (folder / RESERVE).unlink(missing_ok=True)


def obstacle(folder: Path, size: int = RESERVED) -> str | None:
    """Why no file of ``size`` bytes can be written into a directory now, with its path, as on a full disk; None if one can."""
    probe = folder / f".probe.{os.uname().nodename}.{os.getpid()}"
    try:
        probe.write_bytes(b" " * size)
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror}"
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return None


def _write_over(path: Path, text: str) -> bool:
    """Write into space that is there: the file's own, or the one kept for a new file.  Blanks follow a text that is shorter."""
    data = text.encode("ascii").ljust(RESERVED)
    kept = path.parent / RESERVE
    place = path if path.exists() else kept
    if len(data) > RESERVED:
        return False
    try:
        file = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        done = os.pwrite(file, data[: max(size, len(text))], 0)
    except OSError:
        return False
    finally:
        os.close(file)
    if place is kept:
        kept.replace(path)
    return done >= len(text)


def create_once(path: Path, text: str) -> bool:
    """Make a file with its whole content, if it is not there.  Returns whether this call made it.

    Of any number of callers on any hosts one gets True.  A hard link is the step that decides (NFS repeats requests, so the count
    of links is asked instead of the answer); file systems without links get an exclusive creation.

    Raises:
        OSError: if the system refuses.
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
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is none, or no whole one."""
    try:
        data = json.loads(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def read_as(kind: type[T], path: Path) -> T | None:
    """The dataclass that a file holds as JSON; None if the file is missing or damaged, or if it lacks a required field.

    Fields that the class does not know, and values of another type than the class says, are ignored.
    """
    return from_object(kind, read_object(path))


def from_object(kind: type[T], data: Mapping[str, Any] | None) -> T | None:
    """As `read_as`, from the object itself."""
    if data is None:
        return None
    values = {}
    for name, accepted in _accepted_types(kind).items():  # type: ignore[arg-type]  # every class is hashable
        value = data.get(name)
        if tuple in accepted and isinstance(value, list):
            value = tuple(item for item in value if isinstance(item, str))
        if name in data and type(value) in accepted:
            values[name] = value
    try:
        return kind(**values)
    except TypeError:
        return None


@functools.cache
def _accepted_types(kind: type[Any]) -> dict[str, tuple[type, ...]]:
    """The types that each field of a dataclass may have; a number with a fraction may be written without one."""
    accepted: dict[str, tuple[type, ...]] = {}
    for item in dataclasses.fields(kind):
        words = re.split(r"\W+", str(item.type))
        accepted[item.name] = tuple(of for word in words for of in _TYPES.get(word, ()))
    return accepted


def as_text(data: Mapping[str, Any]) -> str:
    """An object as one line of ASCII."""
    return json.dumps(data) + "\n"


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")


def _write(path: Path, text: str, durable: bool) -> None:
    with open_own(path, os.O_TRUNC) as file:
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


def find_executable(command: bytes, environment: Mapping[bytes, bytes], workdir: str) -> bytes | None:
    """The program that a command's first word names, on the PATH of an environment and from a working directory, or None."""
    if b"/" in command:
        path = os.path.join(os.fsencode(workdir), command)  # noqa: PTH118 - bytes
        return command if os.access(path, os.X_OK) and os.path.isfile(path) else None  # noqa: PTH113 - bytes
    for directory in environment.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        path = os.path.join(os.fsencode(workdir), directory, command)  # noqa: PTH118 - bytes
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113 - bytes
            return path
    return None


def kind_of(path: Path, mounts: Iterable[str] | None = None) -> str:
    """Type of the file system that holds a path, such as ``ext4``; ``unknown`` if the kernel does not say.

    Args:
        path: absolute; what does not exist yet is looked for at the nearest parent that does.
        mounts: lines as in ``/proc/self/mountinfo``; by default the kernel's.
    """
    place = os.path.realpath(path)
    best, kind = -1, "unknown"
    for point, found in _mount_points(_read_mounts() if mounts is None else mounts):
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one covers the earlier
            best, kind = len(point), found
    return kind


def is_network(path: Path, mounts: Iterable[str] | None = None) -> bool:
    """Whether a path is on a file system that several hosts may share."""
    kind = kind_of(path, mounts)
    return kind in NETWORK or (kind.startswith("fuse") and any(word in kind for word in _FUSE_NETWORK))


def _read_mounts() -> list[str]:
    try:
        return MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _mount_points(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) > 4 and after.split():
            yield _unescaped(fields[4]), after.split()[0]


def _unescaped(text: str) -> str:
    r"""A mount point without the kernel's escapes, such as ``\040`` for a space."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)

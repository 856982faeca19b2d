"""What kind of file system a path is on, as the kernel lists it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "pvfs2", "orangefs"),
        *("glusterfs", "panfs", "wekafs", "ocfs2", "gfs2", "pnfs", "daos"),
    )
)
"""Types of file systems that several hosts share."""
_FUSE_NETWORK = ("sshfs", "gluster", "s3fs", "ceph", "gcsfuse", "rclone", "juicefs", "davfs", "weka")


def kind_of(path: Path, mounts: Iterable[str] | None = None) -> str:
    """Type of the file system that holds a path, such as ``ext4``; ``unknown`` if the kernel does not say.

    Args:
        path: absolute; what does not exist yet is looked for at the nearest parent that does.
        mounts: lines as in ``/proc/self/mountinfo``; by default the kernel's.
    """
    place = os.path.realpath(path)
    best, kind = -1, "unknown"
    for point, found in _points(_read() if mounts is None else mounts):
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # of two mounts on one point the later one covers the earlier
            best, kind = len(point), found
    return kind


def is_network(path: Path, mounts: Iterable[str] | None = None) -> bool:
    """Whether a path is on a file system that several hosts may share."""
    kind = kind_of(path, mounts)
    return kind in NETWORK or (kind.startswith("fuse") and any(word in kind for word in _FUSE_NETWORK))


def _read() -> list[str]:
    try:
        return MOUNTS.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _points(lines: Iterable[str]) -> Iterable[tuple[str, str]]:
    for line in lines:
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) > 4 and after.split():
            yield _plain(fields[4]), after.split()[0]


def _plain(text: str) -> str:
    r"""A mount point without the kernel's escapes, such as ``\040`` for a space."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)

"""Horovod's sources: checked, unpacked, and changed in the three lines that today's torch and any folder's name need.

Source: Horovod 0.28.1's sdist. Its ``CMakeLists.txt`` and ``horovod/torch/CMakeLists.txt`` ask for C++14; the headers of
torch 2.1 and later need C++17. ``cmake/Utilities.cmake`` takes the path of the sources for a regular expression: below a
folder with a ``+`` in its name, the library ends up in a place of the wheel where nobody looks for it.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import tarfile
import zipfile
from pathlib import Path

from launcher.bootstrap.errors import BootstrapError

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
CMAKE_LISTS = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")
OLD_STANDARD, NEW_STANDARD = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"
UTILITIES = "cmake/Utilities.cmake"
OLD_FOLDER = 'string(REGEX REPLACE "${PROJECT_SOURCE_DIR}(/)?" "" SUB_FOLDER "${CMAKE_CURRENT_SOURCE_DIR}")'
NEW_FOLDER = 'file(RELATIVE_PATH SUB_FOLDER "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")'
PATCHES = (*((name, OLD_STANDARD, NEW_STANDARD) for name in CMAKE_LISTS), (UTILITIES, OLD_FOLDER, NEW_FOLDER))
"""File, line as released, line as needed."""


def check_archive(archive: Path, sha256: str = SHA256) -> None:
    """Compare the archive with the one that this code was written for.

    Raises:
        BootstrapError: It is another one; the file is removed, so that the next run fetches it anew.
    """
    if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
        archive.unlink()
        raise BootstrapError(
            f"the package index delivered another horovod-{VERSION}.tar.gz than expected (its sha256 differs); nothing was built"
        )


def unpack(archive: Path, target: Path) -> None:
    """Unpack and patch the sources into `target`, which appears only when both are done.

    Raises:
        BootstrapError: The archive is broken, or is not the release that the patch was written for.
    """
    staging = target.with_name(target.name + ".part")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(staging, filter="data")
            else:
                tar.extractall(staging)  # older patch releases of 3.10 and 3.11; the archive's digest was checked
    except (tarfile.TarError, EOFError) as error:
        raise BootstrapError(f"{archive} is not a whole archive ({error}); delete it and run again") from error
    (root,) = [path for path in staging.iterdir() if path.is_dir()]
    patch(root)
    root.rename(target)
    shutil.rmtree(staging, ignore_errors=True)


def patch(root: Path) -> None:
    """Make the changes in an unpacked tree.

    Raises:
        BootstrapError: A file does not hold the line exactly once.
    """
    for name, old, new in PATCHES:
        path = root / name
        text = path.read_text() if path.exists() else ""
        if text.count(old) != 1:
            raise BootstrapError(f"Horovod's {name} does not hold `{old}` once: the patch fits {VERSION} only")
        path.write_text(text.replace(old, new))


def require_library(wheel: Path) -> None:
    """Check that the compiled library is where Horovod looks for it.

    Raises:
        BootstrapError: It is not.
    """
    with zipfile.ZipFile(wheel) as archive:
        if not any(name.startswith("horovod/torch/mpi_lib_v2") for name in archive.namelist()):
            raise BootstrapError("Horovod was built without its torch library; see the build's log for CMake's reason")


def drop_unfinished(build: Path) -> int:
    """Remove what an interrupted build may have left half-written, keep its finished object files, return how many went.

    make takes any newer file for a finished one. Object files that end early are told by their own header; linked
    libraries are always removed, since linking again takes seconds.
    """
    dropped = 0
    for path in build.rglob("*"):
        if path.suffix in {".so", ".a"} or (path.suffix == ".o" and not is_whole_object(path)):
            path.unlink()
            dropped += 1
    return dropped


def is_whole_object(path: Path) -> bool:
    """Whether a 64-bit ELF object file holds its section header table, which is its last part."""
    with path.open("rb") as handle:
        header = handle.read(64)
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return False
    order = "<" if header[5] == 1 else ">"
    table: int = struct.unpack_from(order + "Q", header, 0x28)[0]
    entry_size: int
    entries: int
    entry_size, entries = struct.unpack_from(order + "HH", header, 0x3A)
    return bool(table) and path.stat().st_size >= table + entry_size * entries

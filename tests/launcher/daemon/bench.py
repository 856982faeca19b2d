"""Figures of the daemon, measured on a real one: ``python -m tests.launcher.daemon.bench [--queued N] [--running N] [--json]``.

A row a case: acknowledgement of a submission, listing all jobs (the request alone, and the whole command), and what the daemon
takes while many jobs wait and some run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from launcher.daemon import spawn
from launcher.daemon.dirs import Dirs
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import Submission
from launcher.jobdir.paths import JobPaths, new_id
from launcher.plan import facts
from launcher.plan.planning import make_plan
from launcher.plan.prepare import Prepared, write_directory
from launcher.spec.model import Spec

SLEEP = "600"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.launcher.daemon.bench")
    parser.add_argument("--queued", type=int, default=1000)
    parser.add_argument("--running", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the look at the daemon's load")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="hvd-"))
    os.environ.update(HVDGRAB_STATE=str(folder / "state"), HVDGRAB_RUNTIME=str(folder / "run"), HVDGRAB_CPUS=str(wanted.running))
    try:
        rows = measure(folder, wanted.queued, wanted.running, wanted.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        json.dumps(rows) if wanted.json else "\n".join("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows)
    )
    return 0


def measure(folder: Path, queued: int, running: int, seconds: float) -> list[dict[str, Any]]:
    """All rows; times in seconds, memory in MiB, load in percent of a core."""
    client = Client.connect(start=True)
    try:
        host = facts.collect()
        acknowledged = [submit(client, folder / "jobs", host, number) for number in range(queued + running)]
        _settle(client, running)
        rows = [row("submit acknowledged", acknowledged), row("list request", _times(client.jobs, 10))]
        rows.append(row("ls command", _times(_ls, 5)))
        return [*rows, _load(client, seconds)]
    finally:
        open_ = [view.id for view in client.jobs() if not view.final]
        for job_id in reversed(open_):  # those that run last, so that none starts in their place
            client.cancel(job_id)
        for job_id in open_:
            client.wait(job_id, 60)
        spawn.stop(Dirs.of_user())


def submit(client: Client, root: Path, host: facts.Facts, number: int) -> float:
    """Write and hand over one sleeping job; returns the seconds until the daemon acknowledged it."""
    data = {"name": f"s{number}", "command": ["sleep", SLEEP], "resources": {"ranks": 1, "threads_per_rank": 1}}
    spec = Spec.model_validate(data)
    job = JobPaths(root / new_id(spec.name))
    write_directory(Prepared(spec, make_plan(spec, host, job), job))
    submission = Submission(job.id, str(job.root), dict(os.environ))
    began = time.perf_counter()
    client.submit(submission)
    return time.perf_counter() - began


def _settle(client: Client, running: int) -> None:
    while sum(view.state == "running" for view in client.jobs(state=["running"])) < running:
        time.sleep(1.0)
    time.sleep(5.0)


def _times(action: Any, count: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return times


def _ls() -> None:
    subprocess.run([sys.executable, "-m", "launcher", "ls"], stdout=subprocess.DEVNULL, check=True)


def row(case: str, times: Sequence[float]) -> dict[str, Any]:
    """Median and worst of some times."""
    return {"case": case, "count": len(times), "median_s": round(statistics.median(times), 4), "most_s": round(max(times), 4)}


def _load(client: Client, seconds: float) -> dict[str, Any]:
    status = client.status()
    process = psutil.Process(status.pid)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return {
        "case": "daemon",
        "jobs": dict(status.jobs),
        "core_percent": round(100 * used / seconds, 2),
        "rss_mib": round(process.memory_info().rss / 2**20, 1),
    }


if __name__ == "__main__":
    sys.exit(main())

"""`report`: tables and plots of one job, or of several beside each other, in one file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import launcher
from launcher.cli.book import open_book
from launcher.daemon.http.messages import JobView
from launcher.errors import EXIT_OK, LauncherError, UsageError
from launcher.jobdir.paths import JobPaths


def report(wanted: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Make the report of jobs, a group's variants compared; returns the exit code."""
    jobs = open_book(jobs_dir).several(wanted)
    found = [job for job in jobs if measured(job.view)]
    if not found:
        states = ", ".join(f"{job.view.id} ({job.view.state})" for job in jobs[:5])
        raise UsageError(f"nothing was measured yet: no metrics.jsonl in the directory of {states}")
    path = make([job.view.dir for job in found])
    if as_json:
        print(json.dumps({"report": path, "jobs": [job.to_json() for job in found]}))
        return EXIT_OK
    for job in jobs:
        if job not in found:
            print(f"left out, because it has measured nothing: {job.view.id} ({job.view.state})", file=sys.stderr)
    print(path)
    return EXIT_OK


def measured(view: JobView) -> bool:
    """Whether a job's training has noted anything."""
    return JobPaths(Path(view.dir)).metrics.exists()


def is_made(view: JobView) -> bool:
    """Whether a job's own report is there, and not older than what was measured."""
    paths = JobPaths(Path(view.dir))
    try:
        return paths.report.stat().st_mtime_ns >= paths.metrics.stat().st_mtime_ns
    except OSError:
        return False


def make(directories: Sequence[str]) -> str:
    """Run ``python -m hvdgrab.report`` over job directories; returns the path of what it wrote, in the first of them.

    Raises:
        LauncherError: with what it said.
    """
    argv = [sys.executable, "-m", "hvdgrab.report", *directories]
    root = str(Path(launcher.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": search}
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}, without a word"]
        raise LauncherError(f"the report could not be made: {lines[-1]}")
    return done.stdout.strip().splitlines()[-1]

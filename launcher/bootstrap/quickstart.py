"""`make quickstart`: set up, run the ready-made job to its end, say where the results lie and what took how long."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

JOB = "configs/quickstart.yaml"


def run_quickstart(setup: Callable[[], int], venv: Path, root: Path, environ: Mapping[str, str]) -> int:
    """Do both, and return the job's exit code.

    Args:
        setup: Makes the environment ready; raises or returns non-zero if it cannot.
        venv: The environment.
        root: The checkout; the job runs with it as its working directory.
    """
    started = time.monotonic()
    code = setup()
    if code != 0:
        return code
    ready = time.monotonic()
    print(f"\nrunning {JOB}", flush=True)
    before = set(job_directories(root))
    path = os.pathsep.join([str(venv / "bin"), environ.get("PATH", "")])
    program = str(venv / "bin" / "hvdgrab-launch")
    code = run_job([program, JOB], root, {**environ, "PATH": path})
    ended = time.monotonic()
    fresh = [path for path in job_directories(root) if path not in before]
    if code == 0:
        print("\nresults: " + (str(fresh[-1]) if fresh else "in the directory that is named above"))
    print(f"wall time: set-up {ready - started:.0f} s, job {ended - ready:.0f} s")
    print(f"`. {venv / 'bin' / 'activate'}` puts hvdgrab-launch on your PATH.")
    print(f"The launcher's daemon waits for further jobs; `{program} daemon stop` ends it.", flush=True)
    return code


def run_job(argv: list[str], root: Path, environ: Mapping[str, str]) -> int:
    """Submit the job and follow it. Ctrl-C reaches the launcher too, which says how to come back: its end is waited for."""
    # A handler and not `except KeyboardInterrupt`: the key may come before the process is there to be waited for.  What is run
    # starts with the default again.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(argv, cwd=root, env=dict(environ)) as process:
            return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def job_directories(root: Path) -> list[Path]:
    """The job directories below `root`/jobs, oldest first."""
    return sorted((path.parent for path in (root / "jobs").glob("*/plan.json")), key=lambda path: path.stat().st_mtime)

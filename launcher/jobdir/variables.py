"""The names of all environment variables of the launcher, each written here alone, and those of an attempt's processes.

``HVDGRAB_CACHE`` belongs to `launcher.bootstrap`, which stands apart.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.jobdir.paths import AttemptPaths

PREFIX = "HVDGRAB_"
"""Every name starts with it; a user's ``env`` may set none but `DATA`."""

JOB_ID = "HVDGRAB_JOB_ID"
"""The job's id: the mark by which its processes are found."""
JOB_DIR = "HVDGRAB_JOB_DIR"
ATTEMPT = "HVDGRAB_ATTEMPT"
"""The attempt's number, from 1."""
PROGRESS = "HVDGRAB_PROGRESS"
"""Path of the file that the training touches to show progress."""
FINISHED = "HVDGRAB_FINISHED"
"""Path of the training's own mark of being done."""
GRAB = "HVDGRAB_GRAB"
"""The spec's ``grab`` section as JSON."""
SERVER_RANKS = "HVDGRAB_SERVER_RANKS"
DATA = "HVDGRAB_DATA"
"""The user's directory of data."""

SUPERVISOR = "HVDGRAB_SUPERVISOR"
"""Host, process id and start of the attempt's supervisor."""
PYTHON = "HVDGRAB_PYTHON"
"""The interpreter by which mpirun's remote shell is run."""
GRACE_SECONDS = "HVDGRAB_GRACE_SECONDS"
HEARTBEAT_SECONDS = "HVDGRAB_HEARTBEAT_SECONDS"
SLURM_SECONDS = "HVDGRAB_SLURM_SECONDS"
"""Seconds between two queries of SLURM."""

JOBS = "HVDGRAB_JOBS"
"""The directory of all jobs."""
STATE = "HVDGRAB_STATE"
"""The daemon's state directory."""
RUNTIME = "HVDGRAB_RUNTIME"
"""The directory of the daemon's socket."""
CPUS, GPUS, MAX_RUNNING = "HVDGRAB_CPUS", "HVDGRAB_GPUS", "HVDGRAB_MAX_RUNNING"
"""The daemon's slots."""
CRASH_AT = "HVDGRAB_CRASH_AT"
"""Where the daemon kills itself; for tests."""


def own_variables(attempt: AttemptPaths) -> dict[str, str]:
    """Variables that every process of an attempt carries: its mark, and where the training says how far it is."""
    return {
        JOB_ID: attempt.job.id,
        JOB_DIR: str(attempt.job.root),
        ATTEMPT: str(attempt.number),
        PROGRESS: str(attempt.progress),
        FINISHED: str(attempt.job.finished),
    }


def seconds_in(name: str, default: float) -> float:
    """The seconds that a variable of this process holds, at least 0.05; the default if it holds no number."""
    try:
        return max(0.05, float(os.environ.get(name) or default))
    except ValueError:
        return default

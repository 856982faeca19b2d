"""The search for what is left of a job: every process that carries its mark, HVDGRAB_JOB_ID, in its environment.

A process group does not hold children that call ``setsid``, and a signal does not reach what ignores it; the environment that a
process was started with stays with all its descendants.
"""

from __future__ import annotations

import os
import time

import psutil

MARK = "HVDGRAB_JOB_ID"


def marked(job_id: str) -> list[psutil.Process]:
    """Living processes of a job on this host, this process left out; those of other users cannot be seen."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == job_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            continue
    return found


def sweep(job_id: str, grace: float, deadline: float = 10.0) -> tuple[int, list[int]]:
    """End every process of a job: TERM, then KILL, again until none is found.

    Args:
        job_id: the job.
        grace: seconds between TERM and KILL; 0 for KILL at once.
        deadline: seconds after which the search is given up.

    Returns:
        How many were found, and the ids of those that still live.
    """
    found = marked(job_id)
    count = len(found)
    if found and grace > 0:
        _signal(found, kill=False)
        psutil.wait_procs(found, timeout=grace)
    end = time.monotonic() + deadline
    while (found := marked(job_id)) and time.monotonic() < end:
        _signal(found, kill=True)
        psutil.wait_procs(found, timeout=0.5)
    return count, [process.pid for process in found]


def _signal(processes: list[psutil.Process], *, kill: bool) -> None:
    for process in processes:
        try:
            if kill:
                process.kill()
            else:
                process.terminate()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue

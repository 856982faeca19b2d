"""The search for what is left of a job: every process that carries its mark, HVDGRAB_JOB_ID, in its environment.

Runs on another host as ``python -m launcher.attempt.sweep JOB_ID GRACE [ATTEMPT]`` and answers with one line of JSON.  Standard
library only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from launcher.host import processes
from launcher.jobdir import variables

PAUSE = 0.05


def marked(job_id: str, attempt: int | None = None) -> list[processes.Entry]:
    """Living processes of a job, or of one attempt of it, on this host, excluding this process and its ancestors."""
    wanted = [f"{variables.JOB_ID}={job_id}".encode()]
    wanted += [f"{variables.ATTEMPT}={attempt}".encode()] if attempt is not None else []
    known = processes.table()
    waiting = _ancestors(known)
    return [entry for entry in processes.marked(wanted, known) if entry.pid not in waiting]


def carries(pid: int, job_id: str) -> bool:
    """Whether a process of this host lives and carries a job's mark."""
    found = processes.read_process(pid)
    return found is not None and bool(processes.marked([f"{variables.JOB_ID}={job_id}".encode()], {pid: found}))


def family(job_id: str, attempt: int | None = None) -> list[processes.Entry]:
    """The same with all their descendants: a wrapper holds what has dropped its mark, and must not be ended before it."""
    known = processes.table()
    waiting = _ancestors(known)
    found = {entry.pid: entry for entry in marked(job_id, attempt)}
    for entry in list(found.values()):
        found.update({below.pid: below for below in processes.descendants(entry.pid, known) if below.pid not in waiting})
    return list(found.values())


def _ancestors(known: dict[int, processes.Entry]) -> set[int]:
    found: set[int] = set()
    pid = os.getpid()
    while pid in known and pid not in found:
        found.add(pid)
        pid = known[pid].parent
    return found


def sweep(job_id: str, grace: float, deadline: float = 10.0, attempt: int | None = None) -> tuple[int, list[int]]:
    """End every process of a job: TERM, then KILL, again until none is found.

    Args:
        job_id: the job.
        grace: seconds between TERM and KILL; 0 for KILL at once.
        deadline: seconds after which the search is given up.
        attempt: only this attempt's processes; by default all.

    Returns:
        How many were found, and the ids of those that still live.
    """
    return end(lambda: family(job_id, attempt), grace, deadline)


def end(search: Callable[[], list[processes.Entry]], grace: float, deadline: float = 10.0) -> tuple[int, list[int]]:
    """As `sweep`, of whatever a search finds; children of this process among them are collected."""
    found = search()
    seen = {entry.pid for entry in found}
    if found and grace > 0:
        processes.send(found, signal.SIGTERM)
        _wait_until_gone(search, grace)
    last = time.monotonic() + deadline
    while (found := search()) and time.monotonic() < last:
        seen |= {entry.pid for entry in found}
        processes.send(found, signal.SIGKILL)
        _wait_until_gone(search, 0.5)
    return len(seen), [entry.pid for entry in found]


def _wait_until_gone(search: Callable[[], list[processes.Entry]], seconds: float) -> None:
    last = time.monotonic() + seconds
    while search() and time.monotonic() < last:
        time.sleep(PAUSE)


def main(argv: Sequence[str]) -> int:
    """Entry point on another host; returns the exit code, 1 if something is left."""
    if len(argv) not in (2, 3):
        print("usage: python -m launcher.attempt.sweep JOB_ID GRACE [ATTEMPT]", file=sys.stderr)
        return 2
    found, remaining = sweep(argv[0], float(argv[1]), attempt=int(argv[2]) if len(argv) == 3 else None)
    print(json.dumps({"found": found, "remaining": remaining}))
    return 1 if remaining else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`cancel`, `retry` and `wait`: what changes jobs, or waits for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence

from launcher.attempt.sweep import sweep
from launcher.cli.find import Listed, find
from launcher.cli.follow import Link
from launcher.cli.texts import complain, end_lines, next_commands, state_text
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView
from launcher.errors import EXIT_FAILED, EXIT_OK, LauncherError, UsageError
from launcher.host.processes import alive
from launcher.jobdir.claim import Claim
from launcher.jobdir.words import CANCELLED, FAILED, UNKNOWN, WAITING

EXIT_TIMEOUT = 124
"""`wait --timeout` ran out, as timeout(1) has it."""
CANCEL_SECONDS = 90.0
"""How long `cancel` waits until all processes of a job are gone; what does not end is killed after a minute."""
SILENT_SECONDS = 3.0
"""After so long `cancel` names the jobs that it waits for."""
POLL_SECONDS = 0.25
UNKNOWN_SECONDS = 30.0
"""How long a foreground job may be unknown: if its command was killed, its ranks are ending meanwhile."""
SWEEP_GRACE = 5.0
"""Seconds between TERM and KILL for what a command that was killed has left."""


def cancel(wanted: Sequence[str], jobs_dir: str | None, *, as_json: bool, wait: bool = True) -> int:
    """End jobs, and wait until they are gone; those that have ended stay as they are.  Returns the exit code."""
    client = Client.connect(start=True)
    jobs = find(wanted, jobs_dir, client, prefer_active=True)
    jobs.sort(key=lambda job: job.view.state not in WAITING)  # or an ending one's place would go to a waiting one
    asked = [Listed(client.cancel(job.id)) if job.in_record else _cancel_foreground(job) for job in jobs]
    ended = _gone(client, asked) if wait else [_until(client, job, 0.0) for job in asked]
    if as_json:
        print(json.dumps([job.to_json() for job in ended]))
    else:
        for before, after in zip(jobs, ended, strict=True):
            print(_cancelled_text(after.view, before=before.view.final))
    return EXIT_OK if not wait or all(job.view.final for job in ended) else EXIT_FAILED


def _gone(client: Client, asked: Sequence[Listed]) -> list[Listed]:
    """The jobs when they have ended, or after `CANCEL_SECONDS`; names those that take longer than a moment."""
    began = time.monotonic()
    soon = [_until(client, job, began + SILENT_SECONDS) for job in asked]
    for view in (job.view for job in soon if not job.view.final):
        complain(f"{view.id}: asked to end, now {state_text(view)}; what does not end by itself is killed after a minute")
    return [job if job.view.final else _until(client, job, began + CANCEL_SECONDS) for job in soon]


def _cancelled_text(view: JobView, *, before: bool) -> str:
    if before:
        return f"{view.id}: had ended before: {view.state}"
    if view.final:
        return f"{view.id}: {state_text(view)}"
    return f"{view.id}: asked to end, but it has not yet: {state_text(view)}; `hvdgrab-launch wait {view.id}` waits for it"


def _cancel_foreground(job: Listed) -> Listed:
    """Ask the command that runs a job in the foreground to end it."""
    if job.view.final:
        return job
    claim = Claim.read(job.paths.newest_attempt())
    if claim is None or claim.host != socket.gethostname():
        where = f": it runs on {claim.host}, cancel it there" if claim is not None else ""
        raise UsageError(f"{job.id} is not in the daemon's record, and nothing of it can be asked to end{where}")
    if not alive(claim.pid, claim.pid_started):
        sweep(job.id, SWEEP_GRACE)
        return job.again()
    with contextlib.suppress(OSError):
        job.paths.cancel.touch()
    with contextlib.suppress(ProcessLookupError):
        os.kill(claim.pid, signal.SIGTERM)
    return job


def _until(client: Client, job: Listed, deadline: float | None) -> Listed:
    """The job when it has ended, or the time is over."""
    if job.in_record:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return Listed(Link(client, complain).ask(lambda daemon: daemon.wait(job.id, left)))
    known = time.monotonic()
    while True:
        job, now = job.again(), time.monotonic()
        known = known if job.view.state == UNKNOWN else now
        if job.view.final or now > known + UNKNOWN_SECONDS or (deadline is not None and now >= deadline):
            return job
        time.sleep(POLL_SECONDS)


def wait(wanted: Sequence[str], jobs_dir: str | None, *, as_json: bool, timeout: float | None) -> int:
    """Wait for jobs; returns the exit code of the one that failed first, 0 if none did."""
    deadline = None if timeout is None else time.monotonic() + timeout
    client = Client.connect(start=True)
    jobs = find(wanted, jobs_dir, client)
    ended = [_until(client, job, deadline) for job in jobs]
    if as_json:
        print(json.dumps([job.to_json() for job in ended] if len(ended) != 1 else ended[0].to_json()))
    else:
        for job in ended:
            print("\n".join(end_lines(job.view) if job.view.final else [f"{job.view.id}: {state_text(job.view)}"]))
    return exit_code([job.view for job in ended])


def exit_code(views: Sequence[JobView]) -> int:
    """Of several jobs: the code of the one that failed first; `EXIT_TIMEOUT` if none failed and one has not ended."""
    failed = [view for view in views if view.final and view.exit_code != EXIT_OK]
    if failed:
        first = min(failed, key=lambda view: view.finished or 0.0)
        return EXIT_FAILED if first.exit_code is None else first.exit_code
    return EXIT_OK if all(view.final for view in views) else EXIT_TIMEOUT


def retry(wanted: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Queue failed or cancelled jobs again; returns the exit code."""
    client = Client.connect(start=True)
    jobs = find(wanted, jobs_dir, client)
    foreground = [job for job in jobs if not job.in_record]
    if foreground:
        raise UsageError(f"{foreground[0].id} ran in the foreground: start it again from {foreground[0].paths.spec}")
    if len(jobs) > 1:  # of a group, those that succeeded or still run need no other try
        jobs = [job for job in jobs if job.view.state in (FAILED, CANCELLED)]
    if not jobs:
        raise UsageError("none of these jobs has failed or was cancelled")
    views, faults = _retry_all(client, jobs)
    if as_json:
        print(json.dumps([view.to_json() for view in views]))
    else:
        for view in views:
            print(f"{view.id}: {state_text(view)}")
        if len(views) == 1:
            print("\n".join(next_commands(views[0].id, final=False)))
    return EXIT_OK if not faults else faults[0].exit_code


def _retry_all(client: Client, jobs: Sequence[Listed]) -> tuple[list[JobView], list[LauncherError]]:
    """Queue each job by itself: if one cannot be queued, the next ones are tried all the same."""
    views: list[JobView] = []
    faults: list[LauncherError] = []
    for job in jobs:
        try:
            views.append(client.retry(job.id, os.environ))
        except UsageError as error:
            faults.append(error)
            if len(jobs) > 1:
                complain(str(error))
    if len(jobs) == 1 and faults:
        raise faults[0]
    return views, faults

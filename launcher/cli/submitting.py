"""`run`: a job, or a group of variants, is handed to the daemon and followed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from launcher.cli.acting import exit_code
from launcher.cli.find import Listed, name_of, resolve_all
from launcher.cli.follow import follow, follow_group
from launcher.cli.planned import prepared_jobs
from launcher.cli.showing import end_data, end_of_job, report_of
from launcher.cli.texts import complain, next_commands, placement_text
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView, Submission
from launcher.errors import EXIT_INTERRUPTED, EXIT_OK, LauncherError, UnreachableError, UsageError
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import CANCELLED, FAILED, RUNNING, SUCCEEDED
from launcher.plan.prepare import Prepared, write_directory


def submit(
    file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool, detach: bool, priority: int | None
) -> int:
    """Submit a job, or a group of variants, and follow it unless told not to; returns the exit code."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    client = Client.connect(start=True)
    stream = sys.stderr if as_json else sys.stdout
    views: list[JobView] = []
    try:
        with HeldInterrupts() as held:
            depends_on = dependencies(client, jobs[0].plan.job.depends_on)
            views = hand_over_all(client, jobs, depends_on, priority, lambda: held.happened)
        if held.happened:
            raise KeyboardInterrupt
        _say_submitted(views, jobs, stream)
        if not detach:
            return _follow(client, views, stream, as_json=as_json)
    except KeyboardInterrupt:
        if not views:
            raise
        return _leave(views, as_json=as_json)
    _say_next(views, stream)
    if as_json:
        print(json.dumps(document(views)))
    return EXIT_OK


class HeldInterrupts:
    """Within it, the first Ctrl-C is only noted: something is done wholly or not at all.  A second one breaks in as usual.

    Attributes:
        happened: whether there was one.
    """

    def __init__(self) -> None:
        self.happened = False
        self._before: Any = None

    def __enter__(self) -> HeldInterrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.happened:
            raise KeyboardInterrupt
        self.happened = True


def dependencies(client: Client, wanted: Sequence[str]) -> list[str]:
    """Ids of the jobs that a spec names: a name means its newest job, a group all its jobs.

    Raises:
        UsageError: there is none in the daemon's record.
    """
    if not wanted:
        return []
    try:
        return [job.id for job in resolve_all(wanted, [Listed(view) for view in client.jobs()])]
    except UsageError as error:
        raise UsageError(f"depends_on: {error}") from None


def hand_over_all(
    client: Client,
    jobs: Sequence[Prepared],
    depends_on: Sequence[str] = (),
    priority: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[JobView]:
    """Give jobs to the daemon: all of them, or none.

    Args:
        client: the daemon.
        jobs: one, or the variants of a group.
        depends_on: ids of jobs that must have succeeded.
        priority: instead of the spec's.
        interrupted: asked after each; True takes all back.

    Raises:
        KeyboardInterrupt: `interrupted` said so; nothing runs.
        UsageError, UnreachableError: as `hand_over`; those that were given before are cancelled.
    """
    given: list[JobView] = []
    try:
        for prepared in jobs:
            given.append(hand_over(client, prepared, depends_on, priority, os.environ))
            if interrupted():
                raise KeyboardInterrupt
    except BaseException:
        for view in given:
            withdraw(JobPaths(Path(view.dir)))
            with contextlib.suppress(LauncherError):
                client.cancel(view.id)
        raise
    return given


def hand_over(
    client: Client, prepared: Prepared, depends_on: Sequence[str], priority: int | None, environment: Mapping[str, str]
) -> JobView:
    """Write a job's directory and give it to the daemon.  A lost answer is asked for again: the id makes that harmless.

    Args:
        client: the daemon.
        prepared: the job.
        depends_on: ids of jobs that must have succeeded.
        priority: instead of the spec's.
        environment: the submitter's.

    Raises:
        UsageError: the daemon refuses the job; its directory is then removed.
        UnreachableError: it is not known whether the daemon has it; the job is then marked as cancelled, so that it does not
            run behind the user's back.
    """
    if priority is not None:
        prepared = replace(prepared, plan=prepared.plan.for_job(priority=priority))
    write_directory(prepared)
    job, plan = prepared.job, prepared.plan.job
    submission = Submission(job.id, str(job.root), environment, plan.priority, tuple(depends_on), plan.group)
    try:
        return client.submit(submission)
    except UnreachableError as error:
        withdraw(job)
        raise UnreachableError(f"{error}; {job.id} was not started, and will not be: submit it again") from error
    except LauncherError:
        shutil.rmtree(job.root, ignore_errors=True)
        raise
    except BaseException:
        withdraw(job)
        raise


def withdraw(job: JobPaths) -> None:
    """Mark a job as cancelled in its directory, where the daemon finds it whatever else it knows."""
    with contextlib.suppress(OSError):
        job.cancel.touch()


def _say_submitted(views: Sequence[JobView], jobs: Sequence[Prepared], stream: TextIO) -> None:
    placed = placement_text(jobs[0].plan)
    if len(views) > 1:
        print(f"{views[0].group}: {len(views)} variants submitted; {placed}", file=stream)
        return
    print(f"{views[0].id}: {placed}", file=stream)
    print(f"output of the ranks: {jobs[0].job.logs}", file=stream, flush=True)


def _say_next(views: Sequence[JobView], stream: TextIO) -> None:
    final = all(view.final for view in views)
    failed = any(view.final and view.exit_code != EXIT_OK for view in views)
    measured = any(JobPaths(Path(view.dir)).metrics.exists() for view in views)
    lines = next_commands(target(views), final=final, failed=failed, group=len(views) > 1, measured=measured)
    print("\n".join(lines), file=stream, flush=True)


def target(views: Sequence[JobView]) -> str:
    """What to call them in a command."""
    return views[0].id if len(views) == 1 else str(views[0].group)


def _follow(client: Client, views: list[JobView], stream: TextIO, *, as_json: bool) -> int:
    if len(views) > 1:
        ended = follow_group(client, str(views[0].group), [view.id for view in views], stream)
    else:
        ended = [follow(client, views[0], stream)]
    _make_report([JobPaths(Path(view.dir)) for view in ended])
    _say_end(ended, stream)
    _say_next(ended, stream)
    if as_json:
        print(json.dumps(document(ended)))
    return exit_code(ended)


def _make_report(jobs: Sequence[JobPaths]) -> None:
    """Make the report of what was measured; that it cannot be made changes nothing about the jobs."""
    measured = [job for job in jobs if job.metrics.exists() and (len(jobs) > 1 or not _has_report(job))]
    try:
        if measured:
            report_of(measured)
    except LauncherError as error:
        complain(f"warning: {error}")


def _has_report(job: JobPaths) -> bool:
    """Whether a job's own report is there, and not older than what was measured."""
    try:
        return job.report.stat().st_mtime_ns >= job.metrics.stat().st_mtime_ns
    except OSError:
        return False


def _say_end(views: Sequence[JobView], stream: TextIO) -> None:
    """Print the end of a job, or of the first that failed of a group; its last lines come before."""
    failed = sorted((view for view in views if view.state == FAILED), key=lambda view: view.finished or 0.0)
    if failed or len(views) == 1:  # else the table has said it
        print("\n".join(end_of_job((failed or views)[0], JobPaths(Path(views[0].dir)).report)), file=stream, flush=True)


def _leave(views: Sequence[JobView], *, as_json: bool) -> int:
    """After Ctrl-C: what was submitted goes on, and how to come back to it."""
    what = f"{target(views)} goes on" if len(views) == 1 else f"the {len(views)} jobs of {target(views)} go on"
    complain(f"no longer following: {what}")
    _say_next(views, sys.stderr)
    if as_json:
        print(json.dumps(document(views)))
    return EXIT_INTERRUPTED


def document(views: Sequence[JobView]) -> dict[str, Any]:
    """What ``--json`` prints: a job, or a group with its jobs."""
    if len(views) == 1:
        return end_data(views[0])
    final = all(view.final for view in views)
    code = exit_code(views) if final else None
    worst = next((state for state in (FAILED, CANCELLED) if any(view.state == state for view in views)), SUCCEEDED)
    return {
        "id": views[0].group,
        "name": name_of(views[0].group) or views[0].group,
        "state": worst if final else RUNNING,
        "exit_code": code,
        "dir": str(Path(views[0].dir).parent),
        "jobs": [end_data(view) for view in views],
    }

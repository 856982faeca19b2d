"""Handing a job to the daemon, and following it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from launcher.attempt.judge import first_failing
from launcher.cli import render
from launcher.cli.acting import exit_code
from launcher.cli.follow import follow, follow_group
from launcher.cli.guard import complain
from launcher.cli.interrupts import HeldInterrupts
from launcher.cli.resolve import Known, name_of, resolve_all
from launcher.cli.run import prepared_jobs
from launcher.cli.texts import end_lines, next_commands
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


def dependencies(client: Client, wanted: Sequence[str]) -> list[str]:
    """Ids of the jobs that a spec names: a name means its newest job, a group all its jobs.

    Raises:
        UsageError: where there is none in the daemon's record.
    """
    if not wanted:
        return []
    known = [Known(view.id, view.name, view.group, not view.final) for view in client.jobs()]
    try:
        return resolve_all(wanted, known)
    except UsageError as error:
        raise UsageError(f"depends_on: {error}") from None


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
        UsageError: where the daemon refuses the job; its directory is then removed.
        UnreachableError: where it is not known whether the daemon has it; the job is then marked as cancelled, so that it does
            not run behind the user's back.
    """
    if priority is not None:
        prepared = replace(prepared, plan=prepared.plan.for_job(priority=priority))
    write_directory(prepared)
    plan, job = prepared.plan, prepared.job
    submission = Submission(job.id, str(job.root), environment, plan.job.priority, tuple(depends_on), plan.job.group)
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
        KeyboardInterrupt: where `interrupted` said so; nothing runs.
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


def _say_submitted(views: Sequence[JobView], jobs: Sequence[Prepared], stream: TextIO) -> None:
    if len(views) > 1:
        print(f"{views[0].group}: {len(views)} variants submitted; {render.placement_text(jobs[0].plan)}", file=stream)
        return
    print(f"{views[0].id}: {render.placement_text(jobs[0].plan)}", file=stream)
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
    ended = _to_the_end(client, views, stream)
    _make_report(ended)
    _say_end(ended, stream)
    _say_next(ended, stream)
    if as_json:
        print(json.dumps(document(ended)))
    return exit_code(ended)


def _make_report(views: Sequence[JobView]) -> None:
    """The report of what was measured; that it cannot be made changes nothing about the jobs."""
    from launcher.cli import report

    measured = [view for view in views if report.measured(view) and (len(views) > 1 or not report.is_made(view))]
    try:
        if measured:
            report.make([view.dir for view in measured])
    except LauncherError as error:
        complain(f"warning: {error}")
    except KeyboardInterrupt:
        complain("warning: the report was interrupted")


def _leave(views: Sequence[JobView], *, as_json: bool) -> int:
    """After Ctrl-C: what was submitted goes on, and how to come back to it."""
    what = f"{target(views)} goes on" if len(views) == 1 else f"the {len(views)} jobs of {target(views)} go on"
    complain(f"no longer following: {what}")
    _say_next(views, sys.stderr)
    if as_json:
        print(json.dumps(document(views)))
    return EXIT_INTERRUPTED


def _to_the_end(client: Client, views: list[JobView], stream: TextIO) -> list[JobView]:
    from launcher.cli.group_views import build_group_view
    from launcher.cli.views import build_view

    if len(views) > 1:
        table = build_group_view(stream)
        try:
            return follow_group(client, str(views[0].group), [view.id for view in views], table)
        finally:
            table.closed()
    display = build_view(stream, JobPaths(Path(views[0].dir)))
    display.opened()
    try:
        return [follow(client, views[0], display)]
    finally:
        display.closed()


def _say_end(views: Sequence[JobView], stream: TextIO) -> None:
    """The end of a job, or of the first that failed of a group; its last lines come before."""
    from launcher.cli.showing import last_marks

    failed = sorted((view for view in views if view.state == FAILED), key=lambda view: view.finished or 0.0)
    if failed:
        lines = render.failure_lines(JobPaths(Path(failed[0].dir)), first_failing(last_marks(failed[0])))
        print("\n".join(lines), file=stream, end="\n" if lines else "")
    if len(views) > 1 and not failed:
        return  # the table has said it
    view = failed[0] if failed else views[0]
    report = JobPaths(Path(views[0].dir)).report
    lines = [*end_lines(view), f"job directory: {view.dir}", *([f"report: {report}"] if report.exists() else [])]
    print("\n".join(lines), file=stream, flush=True)


def document(views: Sequence[JobView]) -> dict[str, Any]:
    """What ``--json`` prints: a job, or a group with its jobs."""
    if len(views) == 1:
        return _one(views[0])
    final = all(view.final for view in views)
    code = exit_code(views) if final else None
    worst = next((state for state in (FAILED, CANCELLED) if any(view.state == state for view in views)), SUCCEEDED)
    return {
        "id": views[0].group,
        "name": name_of(views[0].group) or views[0].group,
        "state": worst if final else RUNNING,
        "exit_code": code,
        "dir": str(Path(views[0].dir).parent),
        "jobs": [_one(view) for view in views],
    }


def _one(view: JobView) -> dict[str, Any]:
    from launcher.cli.showing import last_marks

    failing = first_failing(last_marks(view)) if view.state == FAILED else None
    report = JobPaths(Path(view.dir)).report
    return {
        **view.to_json(),
        "first_failing_rank": failing.rank if failing else None,
        "report": str(report) if report.exists() else None,
    }

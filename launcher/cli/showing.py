"""What is known of one job, or of a group: `show` and `report`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import launcher
from launcher.attempt.judge import first_failing
from launcher.cli.find import Listed, find, lines
from launcher.cli.texts import (
    end_lines,
    facts,
    failure_lines,
    moment,
    next_commands,
    printable,
    time_text,
    waiting_text,
)  # fmt: skip
from launcher.daemon.http.messages import JobView
from launcher.errors import EXIT_OK, UsageError
from launcher.host.text import duration
from launcher.jobdir.end import AttemptEnd, read_ends
from launcher.jobdir.events import read_events
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.metrics import MetricsFollower
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.words import FAILED, RESTARTING, SUCCEEDED, UNKNOWN

EXPLAINED = (FAILED, UNKNOWN, RESTARTING)
"""States in which the failing rank's last lines are shown."""
MOST_WARNINGS = 5
NODES_SHOWN = 8


def show(wanted: str, jobs_dir: str | None, *, as_json: bool) -> int:
    """Show one job, or all of a group; returns the exit code."""
    jobs = find([wanted], jobs_dir)
    if as_json:
        found = [as_data(job) for job in jobs]
        print(json.dumps(found if len(found) > 1 else found[0]))
    elif len(jobs) > 1:
        final = all(job.view.final for job in jobs)
        print("\n".join([*lines(jobs), *next_commands(str(jobs[0].group), final=final, group=True)]))
    else:
        print("\n".join(job_lines(jobs[0].view)))
    return EXIT_OK


def as_data(job: Listed) -> dict[str, Any]:
    """A job for programs, with its attempts and the marks of the last one's ranks."""
    marks = last_marks(job.view)
    return {
        **job.to_json(),
        "attempt_ends": [asdict(end) for end in read_ends(job.paths)],
        "marks": [asdict(mark) if mark else None for mark in marks],
        "slurm_job_id": _slurm_job(job.paths.newest_attempt())[0],
        **_failing_and_report(job.paths, marks),
    }


def end_data(view: JobView) -> dict[str, Any]:
    """A job that was followed to its end, for programs."""
    marks = last_marks(view) if view.state == FAILED else []
    return {**view.to_json(), **_failing_and_report(JobPaths(Path(view.dir)), marks)}


def _failing_and_report(paths: JobPaths, marks: Sequence[RankMark | None]) -> dict[str, Any]:
    failing = first_failing(marks)
    return {
        "first_failing_rank": failing.rank if failing else None,
        "report": str(paths.report) if paths.report.exists() else None,
    }


def job_lines(view: JobView) -> list[str]:
    """All that is known of a job, its failing rank's last lines at the end."""
    paths = JobPaths(Path(view.dir))
    newest = MetricsFollower(paths.metrics)
    newest.poll()
    pairs = [
        ("id", view.id),
        ("state", view.state),
        ("exit code", view.exit_code),
        ("reason", printable(view.reason) if view.reason else None),
        ("next attempt", waiting_text(view)),
        ("group", view.group),
        ("depends on", ", ".join(view.depends_on)),
        ("submitted", moment(view.submitted)),
        ("time", _time(view)),
        ("ranks", f"{view.ranks} by {view.backend}" if view.ranks else None),
        ("SLURM", slurm_text(paths, view)),
        ("progress", newest.latest.text(None) if newest.latest else None),
        ("looked after", f"by the daemon on {view.owner}" if view.owner and not view.final else None),
        ("directory", view.dir if paths.root.exists() else f"{view.dir} (it is gone)"),
        ("report", report_text(view)),
    ]
    last = failure_lines(paths, first_failing(last_marks(view))) if view.state in EXPLAINED else []
    return [*facts(pairs), *_attempt_lines(paths), *warnings_of(paths), *last]


def _time(view: JobView) -> str | None:
    text = time_text(view)
    return text if text is None or view.seconds is not None else f"{text} so far"


def _slurm_job(attempt: AttemptPaths) -> tuple[str | None, str | None]:
    """The SLURM job of an attempt and its cluster; None if there is none."""
    from launcher.slurm.submission import job_of  # the submission's modules are slow to import, and `ls` does without them

    return job_of(attempt)


def slurm_text(paths: JobPaths, view: JobView) -> str | None:
    """The SLURM job that runs the newest attempt or ran it, and its nodes once they are known; None if there is none."""
    attempt = paths.newest_attempt()
    number, cluster = _slurm_job(attempt)
    if number is None:
        return None
    end = AttemptEnd.read(attempt)
    marked = sorted({mark.host for mark in read_marks(attempt, view.ranks) if mark is not None})
    nodes = list(end.hosts) if end is not None and end.hosts else marked
    more = f" and {len(nodes) - NODES_SHOWN} more" if len(nodes) > NODES_SHOWN else ""
    where = f" of cluster {cluster}" if cluster else ""
    return f"job {number}{where}" + (f" on {', '.join(nodes[:NODES_SHOWN])}{more}" if nodes else "")


def report_text(view: JobView) -> str | None:
    """Where the report is, or what makes it, once there is anything to report."""
    paths = JobPaths(Path(view.dir))
    if paths.report.exists():
        return str(paths.report)
    return f"`hvdgrab-launch report {view.id}` makes it" if view.final and paths.metrics.exists() else None


def warnings_of(paths: JobPaths) -> list[str]:
    """What went wrong without changing the job's result, such as output that a full disk refused."""
    said = [event.get("message") for event in read_events(paths.events) if event["event"] == "warning"]
    return [f"warning: {printable(str(message))}" for message in said[-MOST_WARNINGS:]]


def _attempt_lines(paths: JobPaths) -> list[str]:
    """A line for each attempt that has ended, if there were several."""
    ends = read_ends(paths)
    if len(ends) < 2:
        return []
    return ["attempts:", *(f"  {line}" for line in facts([(str(end.attempt), _end_text(end)) for end in ends]))]


def _end_text(end: AttemptEnd) -> str:
    hosts = f" on {', '.join(end.hosts)}" if end.hosts else ""
    reason = f": {printable(end.reason)}" if end.reason else ""
    progress = "" if end.progressed or end.state == SUCCEEDED else ", without progress"
    return f"{end.state} after {duration(end.seconds)}{hosts}, exit code {end.exit_code}{progress}{reason}"


def last_marks(view: JobView) -> list[RankMark | None]:
    """Marks of the ranks of the last attempt that left any."""
    paths = JobPaths(Path(view.dir))
    for number in reversed(paths.attempt_numbers()):
        marks = read_marks(paths.attempt(number), view.ranks)
        if any(mark is not None for mark in marks):
            return marks
    return [None] * view.ranks


def end_of_job(view: JobView, report: Path | None = None) -> list[str]:
    """The end of a job that was followed; if it failed, the last lines of what failed first come before.

    Args:
        view: the job.
        report: a file that is named if it is there; by default the job's own report.
    """
    paths = JobPaths(Path(view.dir))
    report = report or paths.report
    last = failure_lines(paths, first_failing(last_marks(view))) if view.state == FAILED else []
    return [*last, *end_lines(view), f"job directory: {view.dir}", *([f"report: {report}"] if report.exists() else [])]


def report(wanted: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Make the report of jobs, a group's variants compared; returns the exit code."""
    from launcher.attempt.report import ReportInterruptedError

    jobs = find(wanted, jobs_dir)
    found = [job for job in jobs if job.paths.metrics.exists()]
    if not found:
        states = ", ".join(f"{job.id} ({job.view.state})" for job in jobs[:5])
        raise UsageError(f"nothing was measured yet: no metrics.jsonl in the directory of {states}")
    try:
        path = str(report_of([job.paths for job in found]))
    except ReportInterruptedError:
        raise KeyboardInterrupt from None
    if as_json:
        print(json.dumps({"report": path, "jobs": [job.to_json() for job in found]}))
        return EXIT_OK
    for job in jobs:
        if job not in found:
            print(f"left out, because it has measured nothing: {job.id} ({job.view.state})", file=sys.stderr)
    print(path)
    return EXIT_OK


def report_of(jobs: Sequence[JobPaths]) -> Path:
    """Make the report of jobs that have measured something; returns its path, in the first of their directories.

    Raises:
        ReportError: it could not be made.
    """
    from launcher.attempt.report import make

    root = str(Path(launcher.__file__).resolve().parents[1])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return make([job.root for job in jobs], python=sys.executable, environment={**os.environ, "PYTHONPATH": search})

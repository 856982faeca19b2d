"""`show`: one job, or a group."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.attempt.judge import first_failing
from launcher.cli import listing, render
from launcher.cli.book import Listed, open_book
from launcher.cli.table import facts
from launcher.cli.terminal import printable
from launcher.cli.texts import moment, next_commands, waiting_text
from launcher.daemon.http.messages import JobView
from launcher.host.text import duration
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import read_events
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.metrics import MetricsFollower
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import FAILED, RESTARTING, SUCCEEDED, UNKNOWN
from launcher.slurm.naming import job_of

EXPLAINED = (FAILED, UNKNOWN, RESTARTING)
"""States in which the failing rank's last lines are of interest."""
MOST_WARNINGS = 5
NODES_SHOWN = 8


def show(wanted: str, jobs_dir: str | None, *, as_json: bool) -> int:
    """Show one job, or all of a group; returns the exit code."""
    jobs = open_book(jobs_dir).one(wanted)
    if len(jobs) > 1:
        return _show_group(jobs, as_json=as_json)
    (job,) = jobs
    if as_json:
        print(json.dumps(as_data(job)))
        return 0
    print("\n".join(job_lines(job.view)))
    return 0


def _show_group(jobs: list[Listed], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([as_data(job) for job in jobs]))
        return 0
    final = all(job.view.final for job in jobs)
    print("\n".join([*listing.lines(jobs), *next_commands(str(jobs[0].view.group), final=final, group=True)]))
    return 0


def as_data(job: Listed) -> dict[str, Any]:
    """A job for programs, with its attempts and the marks of the last one's ranks."""
    paths = JobPaths(Path(job.view.dir))
    marks = last_marks(job.view)
    failing = first_failing(marks)
    return {
        **job.to_json(),
        "attempt_ends": [asdict(end) for end in attempt_ends(paths)],
        "marks": [asdict(mark) if mark else None for mark in marks],
        "slurm_job_id": job_of(paths.newest_attempt())[0],
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
    lines = [*facts(pairs), *_attempt_lines(paths), *warnings_of(paths)]
    if view.state in EXPLAINED:
        lines += render.failure_lines(paths, first_failing(last_marks(view)))
    return lines


def _time(view: JobView) -> str | None:
    """From submission to the end; while it runs, since its first attempt began."""
    if view.seconds is not None:
        return duration(view.seconds)
    return f"{duration(max(0.0, time.time() - view.started))} so far" if view.started and not view.final else None


def slurm_text(paths: JobPaths, view: JobView) -> str | None:
    """The job of SLURM that runs the newest attempt or ran it, and its nodes once they are known; None where none does."""
    attempt = paths.newest_attempt()
    number, cluster = job_of(attempt)
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
    """A line for each attempt that has ended, where there were several."""
    ends = attempt_ends(paths)
    if len(ends) < 2:
        return []
    return ["attempts:", *(f"  {line}" for line in facts([(str(end.attempt), _end_text(end)) for end in ends]))]


def _end_text(end: AttemptEnd) -> str:
    hosts = f" on {', '.join(end.hosts)}" if end.hosts else ""
    reason = f": {printable(end.reason)}" if end.reason else ""
    progress = "" if end.progressed or end.state == SUCCEEDED else ", without progress"
    return f"{end.state} after {duration(end.seconds)}{hosts}, exit code {end.exit_code}{progress}{reason}"


def attempt_ends(paths: JobPaths) -> list[AttemptEnd]:
    """How the attempts ended, oldest first."""
    ends = [AttemptEnd.read(paths.attempt(number)) for number in paths.attempt_numbers()]
    return [end for end in ends if end is not None]


def last_marks(view: JobView) -> list[RankMark | None]:
    """Marks of the ranks of the last attempt that left any."""
    paths = JobPaths(Path(view.dir))
    for number in reversed(paths.attempt_numbers()):
        marks = read_marks(paths.attempt(number), view.ranks)
        if any(mark is not None for mark in marks):
            return marks
    return [None] * view.ranks

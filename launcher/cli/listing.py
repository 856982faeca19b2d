"""`ls`: the jobs, oldest first."""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Sequence

from launcher.cli.book import Listed, open_book
from launcher.cli.table import colourful, painted, table
from launcher.cli.terminal import printable
from launcher.cli.texts import waiting_text
from launcher.daemon.http.messages import JobView
from launcher.errors import UsageError
from launcher.host.text import duration
from launcher.jobdir.paths import jobs_root
from launcher.jobdir.words import STATES

HEADING = ("ID", "STATE", "CODE", "TRY", "RANKS", "SUBMITTED", "TIME", "NOTE")
PIPED_WIDTH = 160


def list_jobs(jobs_dir: str | None, *, as_json: bool, states: Sequence[str] = (), group: str | None = None) -> int:
    """List all jobs, or those of some states or of a group; returns the exit code."""
    wanted = _states(states)
    jobs = [job for job in open_book(jobs_dir).all() if not wanted or job.view.state in wanted]
    if group is not None:
        jobs = [job for job in jobs if job.view.group is not None and job.view.group.startswith(group)]
    if as_json:
        print(json.dumps([job.to_json() for job in jobs]))
        return 0
    if not jobs:
        which = " of that kind" if wanted or group else ""
        print(f"no jobs{which} in the record, and none under {jobs_root(jobs_dir)}")
        return 0
    print("\n".join(lines(jobs)))
    return 0


def _states(given: Sequence[str]) -> set[str]:
    wanted = {word.strip() for text in given for word in text.split(",")}
    for word in wanted - set(STATES):
        raise UsageError(f"--state {word}: there is no such state; the states are {', '.join(STATES)}")
    return wanted


def lines(jobs: Sequence[Listed]) -> list[str]:
    """The table, cut to the terminal's width."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if terminal else PIPED_WIDTH
    colour = colourful(sys.stdout)
    heading, *rows = [line[:width] for line in table([HEADING, *(row(job) for job in jobs)])]
    return [heading, *(painted(line, job.view.state) if colour else line for line, job in zip(rows, jobs, strict=True))]


def row(job: Listed) -> tuple[str, ...]:
    """A job's cells."""
    view = job.view
    submitted = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.submitted)) if view.submitted else "-"
    code = "-" if view.exit_code is None else str(view.exit_code)
    attempt = str(view.attempt) if view.attempt else "-"
    return view.id, view.state, code, attempt, str(view.ranks or "-"), submitted, _time(view), _note(job)


def _time(view: JobView) -> str:
    if view.seconds is not None:
        return duration(view.seconds)
    if view.started and not view.final:
        return duration(max(0.0, time.time() - view.started))
    return "-"


def _note(job: Listed) -> str:
    view = job.view
    waiting = waiting_text(view)
    parts = [
        f"next attempt {waiting}" if waiting else "",
        "" if job.kept else "foreground" if job.foreground else "not in this record",
        f"by {view.owner}" if job.kept and not view.final and view.owner not in ("", socket.gethostname()) else "",
        printable(view.reason).replace("\n", " ") if view.reason else "",
    ]
    return "; ".join(part for part in parts if part)

"""The commands that look at job directories: ls, show, logs."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from launcher.cli import render
from launcher.errors import UsageError
from launcher.outcome import first_failing
from launcher.paths import JobPaths, find_job, jobs_root
from launcher.paths import list_jobs as find_jobs
from launcher.process.marks import read_marks
from launcher.progress import MetricsFollower, duration
from launcher.record import FINAL, JobRecord, read_record

POLL_SECONDS = 0.25


def list_jobs(jobs_dir: str | None, *, as_json: bool) -> int:
    """List all jobs; returns the exit code."""
    root = jobs_root(jobs_dir)
    records = [read_record(job) for job in find_jobs(root)]
    if as_json:
        print(json.dumps([_brief(record) for record in records]))
        return 0
    if not records:
        print(f"no jobs under {root}")
        return 0
    rows = [("ID", "STATE", "CODE", "RANKS", "SUBMITTED", "TIME"), *(_row(record) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _row(record: JobRecord) -> tuple[str, ...]:
    submitted = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.submitted)) if record.submitted else "-"
    code = "-" if record.exit_code is None else str(record.exit_code)
    seconds = duration(record.seconds) if record.seconds is not None else "-"
    return record.id, record.state, code, str(record.ranks or "-"), submitted, seconds


def _brief(record: JobRecord) -> dict[str, Any]:
    data = asdict(record)
    del data["events"]
    return data


def show(wanted: str, jobs_dir: str | None, *, as_json: bool) -> int:
    """Show one job; returns the exit code."""
    job = find_job(jobs_root(jobs_dir), wanted)
    record = read_record(job)
    marks = read_marks(job, record.ranks or 0)
    if as_json:
        print(json.dumps({**asdict(record), "marks": [asdict(mark) if mark else None for mark in marks]}))
        return 0
    for line in _show_lines(job, record):
        print(line)
    if record.state == "failed":
        print("\n".join(render.failure_lines(job, first_failing(marks))))
    return 0


def _show_lines(job: JobPaths, record: JobRecord) -> list[str]:
    newest = MetricsFollower(job.metrics)
    newest.poll()
    facts = {
        "id": record.id,
        "state": record.state,
        "exit code": record.exit_code,
        "reason": render.printable(record.reason) if record.reason else None,
        "submitted": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.submitted)) if record.submitted else None,
        "time": duration(record.seconds) if record.seconds is not None else None,
        "ranks": f"{record.ranks} by {record.backend}" if record.ranks else None,
        "progress": newest.latest.text(None) if newest.latest else None,
        "directory": record.dir,
        "report": job.report if job.report.exists() else None,
    }
    return [f"{name:<10} {value}" for name, value in facts.items() if value is not None]


def logs(wanted: str, jobs_dir: str | None, *, rank: int, follow: bool) -> int:
    """Copy a rank's log to stdout, byte for byte; returns the exit code."""
    job = find_job(jobs_root(jobs_dir), wanted)
    record = read_record(job)
    if record.ranks is not None and rank >= record.ranks:
        raise UsageError(f"{job.id} has ranks 0 to {record.ranks - 1}, not {rank}")
    path = job.rank_log(rank)
    if not path.exists() and not follow:
        raise UsageError(f"rank {rank} of {job.id} has written nothing ({record.state})")
    _copy(job, path, follow=follow)
    return 0


def _copy(job: JobPaths, path: Path, *, follow: bool) -> None:
    pause = threading.Event()
    offset = 0
    while True:
        running = follow and read_record(job).state not in (*FINAL, "unknown")
        offset = _copy_from(path, offset, sys.stdout.buffer)
        if not running:
            return
        pause.wait(POLL_SECONDS)


def _copy_from(path: Path, offset: int, target: BinaryIO) -> int:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(1 << 16):
                target.write(chunk)
                offset += len(chunk)
    except FileNotFoundError:
        return offset
    target.flush()
    return offset

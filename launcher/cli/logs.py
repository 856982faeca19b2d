"""What a job has written: `logs` copies a rank's output, `events` prints what happened."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from launcher.cli.find import Listed, find
from launcher.cli.texts import complain, iso, moment, printable
from launcher.daemon.http.client import Client
from launcher.errors import EXIT_OK, LauncherError, UnreachableError, UsageError
from launcher.host.text import duration
from launcher.jobdir.events import read_events
from launcher.jobdir.logs import SEPARATOR
from launcher.jobdir.words import LIVE

POLL_SECONDS = 0.25
STATE_SECONDS = 1.0
"""Between questions whether the job has ended."""
_HIDDEN = ("time", "event", "argv", "pid_started", "processes")
_TIMES = ("time", "at", "started", "ended", "submitted", "finished")
"""Unix times in ``events.jsonl``."""


def logs(wanted: str, jobs_dir: str | None, *, rank: int, follow: bool, attempt: int | None, backend: bool, as_json: bool) -> int:
    """Copy a rank's log to stdout, byte for byte; returns the exit code."""
    jobs = find([wanted], jobs_dir)
    if len(jobs) > 1:
        some = ", ".join(job.id for job in jobs[:3])
        raise UsageError(f"{wanted!r} is a group of {len(jobs)} jobs; name one of them: {some} ...")
    (job,) = jobs
    path = job.paths.backend_log if backend else _rank_log(job, rank)
    if follow and (as_json or attempt is not None):
        raise UsageError("-f goes neither with --json nor with --attempt: it copies what is written from now on")
    if not job.paths.root.exists():
        raise UsageError(f"the directory of {job.id} is gone, {job.paths.root}, and its logs with it")
    if not path.exists() and not follow:
        who = "what started the ranks" if backend else f"rank {rank}"
        raise UsageError(f"{who} of {job.id} has written nothing ({job.view.state})")
    if follow:
        _until_ended(job, lambda offset: copy_from(path, offset, sys.stdout.buffer))
    else:
        _print_log(job, path, attempt, rank=None if backend else rank, as_json=as_json)
    return EXIT_OK


def _rank_log(job: Listed, rank: int) -> Path:
    if job.view.ranks and rank >= job.view.ranks:
        raise UsageError(f"{job.id} has ranks 0 to {job.view.ranks - 1}, not {rank}")
    return job.paths.rank_log(rank)


def _print_log(job: Listed, path: Path, attempt: int | None, *, rank: int | None, as_json: bool) -> None:
    if attempt is None and not as_json:
        copy_from(path, 0, sys.stdout.buffer)
        return
    data = path.read_bytes()
    if attempt is not None:
        data = section(data, attempt, job.id)
    if not as_json:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    lines = data.decode("utf-8", "replace").split("\n")
    print(json.dumps({**job.to_json(), "rank": rank, "path": str(path), "lines": lines[:-1] if lines[-1] == "" else lines}))


def section(data: bytes, attempt: int, job_id: str = "the job") -> bytes:
    """What one attempt wrote into a log that all attempts share.

    Raises:
        UsageError: that attempt wrote nothing.
    """
    starts = {1: 0} | {int(found.group(1)): found.end() for found in SEPARATOR.finditer(data)}
    if attempt not in starts:
        there = ", ".join(map(str, sorted(starts)))
        raise UsageError(f"attempt {attempt} of {job_id} has written nothing here; there are: {there}")
    later = [found.start() for found in SEPARATOR.finditer(data) if found.start() >= starts[attempt]]
    return data[starts[attempt] : later[0] if later else None]


def _until_ended(job: Listed, copy: Callable[[int], int], done: int = 0) -> None:
    """Go on copying what a job writes until it writes no more.

    Args:
        job: the job.
        copy: copies what is new; is given what was done before, and returns what is done now.
        done: what was done before.
    """
    asked, ended = -STATE_SECONDS, job.in_record and job.view.final
    while True:
        if not ended and time.monotonic() - asked >= STATE_SECONDS:
            asked, ended = time.monotonic(), _has_ended(job)
        done = copy(done)
        if ended:
            return
        time.sleep(POLL_SECONDS)


def _has_ended(job: Listed) -> bool:
    """Whether a job writes no more; while no daemon answers, whether its last attempt has ended: no other one begins then."""
    if not job.in_record:
        return job.again().view.state not in LIVE
    try:
        return Client.connect(start=False).job(job.id).final
    except LauncherError:
        attempt = job.paths.newest_attempt()
        if attempt.end.exists():
            complain(f"attempt {attempt.number} has ended, and no daemon runs that could begin another one")
            return True
        return False


def copy_from(path: Path, offset: int, target: BinaryIO) -> int:
    """Copy a file from an offset to its present end; returns that end."""
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


def events(wanted: str, jobs_dir: str | None, *, follow: bool, as_json: bool) -> int:
    """Print a job's events, oldest first; returns the exit code."""
    if follow and as_json:
        raise UsageError("-f does not go with --json, which prints one document")
    jobs = find([wanted], jobs_dir)
    if as_json:
        found = [{"job": job.id, **event} for job in jobs for event in _events(job)]
        print(json.dumps([with_times(event) for event in sorted(found, key=lambda event: float(event.get("time") or 0.0))]))
        return EXIT_OK
    if follow and len(jobs) > 1:
        raise UsageError(f"{wanted!r} is a group of {len(jobs)} jobs; -f follows one")
    for job in jobs:
        if len(jobs) > 1:
            print(f"{job.id}:")
        seen = _print_events(_events(job), 0)
        if not seen:
            complain(f"no event of {job.id} is known: {job.paths.events} is not there")
    if follow:
        _until_ended(jobs[0], lambda after: _print_events(_events(jobs[0]), after), seen)
    return EXIT_OK


def _events(job: Listed) -> list[dict[str, Any]]:
    """From the job directory, which holds all of them; if it is gone, from the daemon."""
    path = job.paths.events
    if path.exists() or not job.in_record:
        return read_events(path)
    try:
        return Client.connect(start=False).events(job.id)
    except UnreachableError:
        return []


def _print_events(found: Sequence[dict[str, Any]], after: int) -> int:
    for event in found[after:]:
        print(line(event), flush=True)
    return len(found)


def with_times(event: dict[str, Any]) -> dict[str, Any]:
    """An event with its times as ISO 8601 with a zone; what is no time stays."""
    return {name: iso(value) if name in _TIMES and _is_number(value) else value for name, value in event.items()}


def line(event: dict[str, Any]) -> str:
    """One event for people: time, name, and what is known."""
    when = moment(event["time"]) if _is_number(event.get("time")) else None
    known = {name: value for name, value in event.items() if name not in _HIDDEN and value not in (None, "", [])}
    details = " ".join(f"{name}={_value(_readable(name, value))}" for name, value in known.items())
    return printable(f"{when or '-':<19}  {event['event']:<12} {details}".rstrip())


def _readable(name: str, value: Any) -> Any:
    if not _is_number(value):
        return value
    if name in _TIMES:
        return moment(value) or value
    return duration(value) if name == "seconds" else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if isinstance(value, str) and (" " in text or "\n" in text) else text

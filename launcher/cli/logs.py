"""`logs`: what a rank has printed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from launcher.cli.book import Listed, directory_view, open_book
from launcher.cli.guard import complain
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView
from launcher.errors import LauncherError, UsageError
from launcher.jobdir.logs import SEPARATOR
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import LIVE

POLL_SECONDS = 0.25
STATE_SECONDS = 1.0
"""Between questions whether the job has ended."""


def logs(wanted: str, jobs_dir: str | None, *, rank: int, follow: bool, attempt: int | None, backend: bool, as_json: bool) -> int:
    """Copy a rank's log to stdout, byte for byte; returns the exit code."""
    jobs = open_book(jobs_dir).one(wanted)
    if len(jobs) > 1:
        some = ", ".join(job.view.id for job in jobs[:3])
        raise UsageError(f"{wanted!r} is a group of {len(jobs)} jobs; name one of them: {some} ...")
    (job,) = jobs
    paths = JobPaths(Path(job.view.dir))
    path = paths.backend_log if backend else _rank_log(job, paths, rank)
    if follow and (as_json or attempt is not None):
        raise UsageError("-f goes neither with --json nor with --attempt: it copies what is written from now on")
    if not paths.root.exists():
        raise UsageError(f"the directory of {job.view.id} is gone, {paths.root}, and its logs with it")
    if not path.exists() and not follow:
        who = "what started the ranks" if backend else f"rank {rank}"
        raise UsageError(f"{who} of {job.view.id} has written nothing ({job.view.state})")
    if follow:
        _follow(path, _ended(job))
        return 0
    _print(job, path, attempt, rank=None if backend else rank, as_json=as_json)
    return 0


def _rank_log(job: Listed, paths: JobPaths, rank: int) -> Path:
    if job.view.ranks and rank >= job.view.ranks:
        raise UsageError(f"{job.view.id} has ranks 0 to {job.view.ranks - 1}, not {rank}")
    return paths.rank_log(rank)


def _print(job: Listed, path: Path, attempt: int | None, *, rank: int | None, as_json: bool) -> None:
    if attempt is None and not as_json:
        copy_from(path, 0, sys.stdout.buffer)
        return
    data = path.read_bytes()
    if attempt is not None:
        data = section(data, attempt, job.view.id)
    if not as_json:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    lines = data.decode("utf-8", "replace").split("\n")
    print(json.dumps({**job.to_json(), "rank": rank, "path": str(path), "lines": lines[:-1] if lines[-1] == "" else lines}))


def section(data: bytes, attempt: int, job_id: str = "the job") -> bytes:
    """What one attempt wrote into a log that all attempts share.

    Raises:
        UsageError: where that attempt wrote nothing.
    """
    starts = {1: 0} | {int(found.group(1)): found.end() for found in SEPARATOR.finditer(data)}
    if attempt not in starts:
        there = ", ".join(map(str, sorted(starts)))
        raise UsageError(f"attempt {attempt} of {job_id} has written nothing here; there are: {there}")
    later = [found.start() for found in SEPARATOR.finditer(data) if found.start() >= starts[attempt]]
    return data[starts[attempt] : later[0] if later else None]


def _ended(job: Listed) -> Callable[[], bool]:
    """A question that is asked again and again: whether nothing more will be written."""
    if not job.kept:
        paths = JobPaths(Path(job.view.dir))
        return lambda: directory_view(paths).state not in LIVE
    state = {"asked": 0.0, "ended": job.view.final}

    def ask() -> bool:
        if not state["ended"] and time.monotonic() - state["asked"] >= STATE_SECONDS:
            state["ended"] = has_ended(job.view)
            state["asked"] = time.monotonic()
        return bool(state["ended"])

    return ask


def has_ended(view: JobView) -> bool:
    """Whether a job writes no more; while no daemon answers, whether its last attempt has ended: no other one begins then."""
    try:
        return Client.connect(start=False).job(view.id).final
    except LauncherError:
        attempt = JobPaths(Path(view.dir)).newest_attempt()
        if attempt.end.exists():
            complain(f"attempt {attempt.number} has ended, and no daemon runs that could begin another one")
            return True
        return False


def _follow(path: Path, ended: Callable[[], bool]) -> None:
    offset = 0
    while True:
        last = ended()
        offset = copy_from(path, offset, sys.stdout.buffer)
        if last:
            return
        time.sleep(POLL_SECONDS)


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

"""The state of a job as its directory alone tells it, as far as this host can.

If the command that ran a job in the foreground is gone without a word, its end is judged from the ranks' marks and from what
still lives.  Only the host on which the command ran can tell; a process of it that lives, or a rank on another host that may,
keeps the state open.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.attempt.judge import EXIT_KILLED, judge
from launcher.attempt.lifeline import SILENCE
from launcher.attempt.sweep import carries
from launcher.errors import EXIT_FAILED
from launcher.host.processes import alive, node_name, process_table
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import read_events
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import FAILED, FINAL, RUNNING, STARTING, SUCCEEDED, UNKNOWN


@dataclass(frozen=True)
class Fate:
    """What is known of a job's state."""

    state: str
    """One of `launcher.jobdir.words.STATES`."""
    exit_code: int | None
    reason: str | None
    finished: float | None = None
    """Unix time of its last sign of life, seconds."""


@dataclass(frozen=True)
class JobRecord:
    """A job as its directory shows it."""

    id: str
    name: str
    dir: str
    state: str
    """One of `launcher.jobdir.words.STATES`."""
    exit_code: int | None = None
    reason: str | None = None
    """Why it is in this state, for people."""
    submitted: float | None = None
    """Unix time, seconds."""
    finished: float | None = None
    seconds: float | None = None
    ranks: int | None = None
    backend: str | None = None
    events: tuple[dict[str, Any], ...] = field(default=(), repr=False)


def read_record(job: JobPaths) -> JobRecord:
    """The job's present state.  The first final event counts: no later one changes it."""
    events = read_events(job.events)
    submitted, started, finished = _firsts(events)
    if submitted and not finished and not alive(submitted.get("pid"), submitted.get("pid_started")):
        events = read_events(job.events)  # it may have ended in order between the two looks
        submitted, started, finished = _firsts(events)
    end = _state(job, submitted, started, finished)
    return JobRecord(
        id=job.id,
        name=job.id[:-21],
        dir=str(job.root),
        state=end.state,
        exit_code=end.exit_code,
        reason=end.reason,
        submitted=submitted.get("time"),
        finished=end.finished,
        seconds=finished.get("seconds", _seconds(submitted.get("time"), end.finished)),
        ranks=submitted.get("ranks"),
        backend=submitted.get("backend"),
        events=tuple(events),
    )


def _firsts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first event of each kind that decides the state; {} where there is none."""
    first: dict[str, dict[str, Any]] = {}
    for event in events:
        first.setdefault(event["event"], event)
    return [first.get(name, {}) for name in ("submitted", "started", "finished")]


def _state(job: JobPaths, submitted: dict[str, Any], started: dict[str, Any], finished: dict[str, Any]) -> Fate:
    if finished.get("state") in FINAL:
        return Fate(finished["state"], finished.get("exit_code"), finished.get("reason"), finished.get("time"))
    if not submitted:
        return _unknown("the job directory holds no record of a submission")
    if submitted.get("host") != socket.gethostname():
        return _unknown(f"it was started on {submitted.get('host')}, and only `hvdgrab-launch show` there can tell")
    if submitted.get("processes") not in (None, process_table()):
        return _unknown("it was started in another container of this host, and only `hvdgrab-launch show` there can tell")
    pid = submitted.get("pid")
    if not isinstance(pid, int):
        return _unknown("its record does not say which process ran it")
    if not alive(pid, submitted.get("pid_started")):
        return fate(job, submitted.get("ranks") or 0, pid, time.time())
    return Fate(RUNNING if started else STARTING, None, None)


def _unknown(reason: str) -> Fate:
    return Fate(UNKNOWN, None, reason)


def _seconds(submitted: float | None, finished: float | None) -> float | None:
    return None if submitted is None or finished is None else max(0.0, round(finished - submitted, 3))


def fate(job: JobPaths, ranks: int, pid: int, now: float) -> Fate:
    """Judge a job whose command has certainly gone.

    Args:
        job: the job directory.
        ranks: how many it has.
        pid: process id that the command had.
        now: Unix time, seconds.
    """
    gone = f"the command that ran it (process {pid}) is gone without a word: it was killed, or the host was started again"
    attempt = job.newest_attempt()
    marks = read_marks(attempt, ranks)
    left = _left(job, marks)
    if left:
        living = ", ".join(map(str, left))
        return Fate(UNKNOWN, None, f"{gone}; of it live the processes {living}: `hvdgrab-launch cancel {job.id}` ends them")
    away = _away(attempt, marks, now)
    if away:
        return Fate(
            UNKNOWN, None, f"{gone}; its ranks on {', '.join(away)} end by themselves within {SILENCE / 60:.0f} minutes, and "
            "are judged then"
        )  # fmt: skip
    last = max((mark.ended or mark.heartbeat for mark in marks if mark is not None), default=None)
    return _judge(attempt, marks, gone, last)


def _judge(attempt: AttemptPaths, marks: list[RankMark | None], gone: str, last: float | None) -> Fate:
    end = AttemptEnd.read(attempt)
    again = f"nothing of it is left; start it again with `hvdgrab-launch {attempt.job.spec}`"
    if end is not None:
        reason = end.reason if end.state != FAILED else f"{end.reason}; {gone}, so no other attempt followed"
        return Fate(end.state, end.exit_code, reason, end.ended)
    if not any(marks):
        code = EXIT_KILLED if attempt.claim.exists() else EXIT_FAILED
        return Fate(FAILED, code, f"{gone}, before a rank had been started; {again}", last)
    finished = attempt.job.finished.exists() or None
    outcome = judge(marks, 0, stopped=Stop.read(attempt), finished=finished)
    if outcome.state == SUCCEEDED:
        return Fate(SUCCEEDED, outcome.exit_code, None, last)
    own = outcome.first_failing is not None
    return Fate(outcome.state, outcome.exit_code, f"{outcome.reason}; {gone}" if own else f"{gone}; {again}", last)


def _left(job: JobPaths, marks: list[RankMark | None]) -> list[int]:
    """Processes of this host that the marks name and that still carry the job's own."""
    here = [mark for mark in marks if mark is not None and mark.exit_code is None and _is_here(mark)]
    pids = [pid for mark in here for pid in (mark.wrapper_pid, mark.pid) if pid is not None]
    return [pid for pid in pids if carries(pid, job.id)]


def _away(attempt: AttemptPaths, marks: list[RankMark | None], now: float) -> list[str]:
    """Other hosts of which a rank may still live: their wrappers end it once the command has been silent for long enough."""
    found = set()
    for mark in marks:
        if mark is None or mark.exit_code is not None or _is_here(mark):
            continue
        if now - _changed(attempt.rank_mark(mark.rank)) < SILENCE:
            found.add(mark.host)
    return sorted(found)


def _is_here(mark: RankMark) -> bool:
    return mark.host in (node_name(), os.uname().nodename)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

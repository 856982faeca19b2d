"""A job in the foreground whose command is gone without a word: what became of it, from its marks and from what still lives.

Only the host on which the command ran can tell; a process of it that lives, or a rank on another host that may, keeps the state
open.
"""

from __future__ import annotations

import os
from pathlib import Path

from launcher.attempt.judge import EXIT_KILLED, judge
from launcher.attempt.lifeline import SILENCE
from launcher.attempt.sweep import carries
from launcher.errors import EXIT_FAILED
from launcher.host.processes import node_name
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import Fate
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import FAILED, SUCCEEDED, UNKNOWN


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

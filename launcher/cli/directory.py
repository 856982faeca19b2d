"""A job that is in no record, as its directory shows it: one that ran in the foreground, or that another record holds.

If the command that ran it is gone without a word, its state is judged from its ranks' marks and from what still lives.  Only
the host on which the command ran can tell; a process of it that lives, or a rank on another host that may, keeps the state open.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.attempt.judge import EXIT_KILLED, Evidence, judge
from launcher.attempt.rank.keeper import SILENCE
from launcher.attempt.sweep import carries
from launcher.daemon.http.messages import JobView
from launcher.errors import EXIT_FAILED
from launcher.host.processes import alive, node_name, process_table
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import read_events
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Plan, PlanFileError
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import FAILED, FINAL, RUNNING, STARTING, SUCCEEDED, UNKNOWN


@dataclass(frozen=True)
class Fate:
    """What is known of a job's state."""

    state: str
    exit_code: int | None = None
    reason: str | None = None
    finished: float | None = None
    """Unix time of its last sign of life, seconds."""


class _Events:
    """The first event of each kind: no later one changes a job's state.  An event that has not happened is empty."""

    def __init__(self, job: JobPaths) -> None:
        self._first: dict[str, dict[str, Any]] = {}
        for event in read_events(job.events):
            self._first.setdefault(event["event"], event)

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._first.get(name, {})


def view_of(job: JobPaths) -> JobView:
    """The job as its directory shows it at present."""
    events = _Events(job)
    submitted = events["submitted"]
    if submitted and not events["finished"] and not alive(submitted.get("pid"), submitted.get("pid_started")):
        events = _Events(job)  # it may have ended in order between the two looks
    fate = _fate(job, events)
    begun, queued = submitted.get("time"), events["queued"]
    said = submitted or queued
    plan = None if said.get("ranks") else _plan(job)
    took = None if begun is None or fate.finished is None else max(0.0, round(fate.finished - begun, 3))
    numbers = job.attempt_numbers()
    return JobView(
        id=job.id,
        name=job.id[:-21],
        state=fate.state,
        exit_code=fate.exit_code,
        dir=str(job.root),
        reason=fate.reason,
        submitted=said.get("time") or 0.0,
        started=begun,
        finished=fate.finished,
        seconds=events["finished"].get("seconds", took),
        ranks=said.get("ranks") or (plan.placement.ranks if plan else 0),
        backend=said.get("backend") or (plan.launch.backend if plan else ""),
        attempt=numbers[-1] if numbers else 0,
        attempts=sum(job.attempt(number).end.exists() for number in numbers),
        group=None,
        priority=0,
        owner="",
        next_try=None,
    )


def _plan(job: JobPaths) -> Plan | None:
    try:
        return Plan.read(job.plan)
    except PlanFileError:
        return None


def _fate(job: JobPaths, events: _Events) -> Fate:
    submitted, finished = events["submitted"], events["finished"]
    if finished.get("state") in FINAL:
        return Fate(finished["state"], finished.get("exit_code"), finished.get("reason"), finished.get("time"))
    if not submitted:
        taken = "taken in by the daemon of another HVDGRAB_STATE" if events["queued"] else "nobody has taken it in"
        return Fate(UNKNOWN, reason=taken)
    only_there = "and only `hvdgrab-launch show` there can tell"
    if submitted.get("host") != socket.gethostname():
        return Fate(UNKNOWN, reason=f"it was started on {submitted.get('host')}, {only_there}")
    if submitted.get("processes") not in (None, process_table()):
        return Fate(UNKNOWN, reason=f"it was started in another container of this host, {only_there}")
    pid = submitted.get("pid")
    if not isinstance(pid, int):
        return Fate(UNKNOWN, reason="its record does not say which process ran it")
    if alive(pid, submitted.get("pid_started")):
        return Fate(RUNNING if events["started"] else STARTING)
    return _fate_of_abandoned(job, submitted.get("ranks") or 0, pid)


def _fate_of_abandoned(job: JobPaths, ranks: int, pid: int) -> Fate:
    """Judge a job of some ranks whose command, which had this process id, has certainly gone."""
    gone = f"the command that ran it (process {pid}) is gone without a word: it was killed, or the host was started again"
    attempt = job.newest_attempt()
    marks = read_marks(attempt, ranks)
    left = _left(job, marks)
    if left:
        living = ", ".join(map(str, left))
        return Fate(UNKNOWN, reason=f"{gone}; of it live the processes {living}: `hvdgrab-launch cancel {job.id}` ends them")
    away = _away(attempt, marks)
    if away:
        silence = f"within {SILENCE / 60:.0f} minutes, and are judged then"
        return Fate(UNKNOWN, reason=f"{gone}; its ranks on {', '.join(away)} end by themselves {silence}")
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
    outcome = judge(Evidence(marks, 0, Stop.read(attempt), finished))
    if outcome.state == SUCCEEDED:
        return Fate(SUCCEEDED, outcome.exit_code, None, last)
    own = outcome.first_failing is not None
    return Fate(outcome.state, outcome.exit_code, f"{outcome.reason}; {gone}" if own else f"{gone}; {again}", last)


def _left(job: JobPaths, marks: list[RankMark | None]) -> list[int]:
    """Processes of this host that the marks name and that still carry the job's own mark."""
    here = [mark for mark in marks if mark is not None and mark.exit_code is None and _is_here(mark)]
    pids = [pid for mark in here for pid in (mark.wrapper_pid, mark.pid) if pid is not None]
    return [pid for pid in pids if carries(pid, job.id)]


def _away(attempt: AttemptPaths, marks: list[RankMark | None]) -> list[str]:
    """Other hosts on which a rank may still live: their wrappers end it once the command has been silent for long enough."""
    open_ends = [mark for mark in marks if mark is not None and mark.exit_code is None and not _is_here(mark)]
    return sorted({mark.host for mark in open_ends if time.time() - _changed(attempt.rank_mark(mark.rank)) < SILENCE})


def _is_here(mark: RankMark) -> bool:
    return mark.host in (node_name(), os.uname().nodename)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

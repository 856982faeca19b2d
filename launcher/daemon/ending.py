"""From the end of an attempt to the job's end or its next attempt."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from launcher.attempt import remote
from launcher.attempt.judge import Evidence, judge, why_marks_are_missing
from launcher.attempt.policy import Final, Verdict, decide
from launcher.attempt.starter import Gone
from launcher.attempt.sweep import sweep
from launcher.daemon.context import Context, log, step
from launcher.daemon.record import Job
from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED
from launcher.host.clock import Unchanged
from launcher.host.files import from_object, obstacle
from launcher.host.text import duration
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import read_events
from launcher.jobdir.marks import read_marks
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Plan, PlanFileError
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import (
    CANCELLED,
    FAILED,
    FAILURE,
    FINISHED,
    HANG,
    LOST_NODE,
    NOT_STARTED,
    PREEMPTION,
    RESTARTING,
    TIME_LIMIT,
    UNDER_WAY,
    WAITING,
)

SWEEP_GRACE = 3.0
"""Seconds between TERM and KILL for what a lost supervisor left behind."""
SILENT_SECONDS = 600.0
"""Seconds without a touch after which a job that is to be cancelled is given up; ten times what file systems need to show one."""
OWN_ENDS = (FINISHED, FAILURE, HANG, TIME_LIMIT)
"""Causes that hold even if the job was cancelled meanwhile: it had ended by itself."""
PUT_BACK = "the scheduler put the job back; the attempt's supervisor left no word"
Sweep = Callable[[str, float], tuple[int, list[int]]]


class Ending:
    """Judges ends and writes them down."""

    def __init__(self, context: Context, sweep_job: Sweep = sweep) -> None:
        self._context = context
        self._store = context.store
        self._sweep = sweep_job

    def ended(self, job: Job, gone: Gone) -> None:
        """Note the end of a job's attempt whose supervisor is gone."""
        job = self.catch_up(job, gone.attempt)
        attempt = JobPaths(Path(job.dir)).attempt(job.attempt)
        end = AttemptEnd.read(attempt)
        step("end-seen")
        self._note_end(job, corrected(end, gone) if end is not None else self._lost(job, attempt, gone))

    def catch_up(self, job: Job, attempt: int | None) -> Job:
        """The job at a later attempt that a scheduler has begun by itself; the ends of those before go into the record."""
        if attempt is None or attempt <= job.attempt:
            return job
        paths = JobPaths(Path(job.dir))
        with self._store.transaction() as record:
            for number in range(job.attempt, attempt):
                end = AttemptEnd.read(paths.attempt(number)) or AttemptEnd(number, FAILED, LOST_NODE, EXIT_FAILED, PUT_BACK)
                record.add_end(job.id, number, asdict(end))
            ended = job.attempts + attempt - job.attempt
            changed = record.change(job.id, only_in=UNDER_WAY, attempt=attempt, attempts=ended)
        return changed or job

    def not_started(self, job: Job, reason: str, *, final: bool = False) -> None:
        """Note an attempt that could not be started; ``final`` if another one could not either."""
        log.warning("%s: attempt %d was not started: %s", job.id, job.attempt, reason)
        now = self._context.clock.wall()
        end = AttemptEnd(job.attempt, FAILED, NOT_STARTED, EXIT_FAILED, reason, started=now, ended=now)
        self._context.note(job, "attempt-end", **asdict(end))
        self._note_end(job, end, Final(FAILED, EXIT_FAILED, reason) if final else None)

    def finish_cancelled(self, job: Job, reason: str = "cancelled before it started") -> None:
        """Note the end of a cancelled attempt of which nothing lives, as far as can be known."""
        now = self._context.clock.wall()
        self._note_end(job, AttemptEnd(job.attempt, CANCELLED, CANCELLED, EXIT_INTERRUPTED, reason, started=now, ended=now))

    def cancel_waiting(self, job: Job) -> None:
        """Note the end of a waiting job that was cancelled in its directory."""
        with self._store.transaction() as record:
            record.change(
                job.id, only_in=WAITING, state=CANCELLED, exit_code=EXIT_INTERRUPTED, finished=self._context.clock.wall(),
                reason="cancelled before it started", cancel=True,
            )  # fmt: skip
        self._context.changed()

    def never(self, job: Job, reason: str) -> None:
        """Note the end of a waiting job that can never start."""
        with self._store.transaction() as record:
            record.change(
                job.id, only_in=WAITING, state=FAILED, exit_code=EXIT_FAILED, finished=self._context.clock.wall(), reason=reason
            )
        self._context.changed()

    def close(self, job: Job) -> None:
        """Do all that follows a job's final state, once: its last event, and the removal of its environment."""
        paths = JobPaths(Path(job.dir))
        if not _noted(read_events(paths.events), job):
            details: dict[str, Any] = {"state": job.state, "exit_code": job.exit_code, "reason": job.reason}
            self._context.note(job, "finished", **details, seconds=round(max(0.0, (job.finished or 0.0) - job.submitted), 3))
        step("close-noted")
        self._context.environments.forget(job.id)
        self._context.reasons.pop(job.id, None)
        step("close-forgotten")
        with self._store.transaction() as record:
            record.close(job.id)
        log.info("%s: %s, exit code %s", job.id, job.state, job.exit_code)
        self._context.changed()

    def _note_end(self, job: Job, end: AttemptEnd, verdict: Verdict | None = None) -> None:
        now = self._context.clock.wall()
        verdict = verdict or self._verdict(job, end, now)
        with self._store.transaction() as record:
            present = record.get(job.id)
            if present is None or present.attempt != end.attempt:
                return
            if present.cancel and not (isinstance(verdict, Final) and end.cause in OWN_ENDS):
                verdict = Final(CANCELLED, EXIT_INTERRUPTED, _cancelled_reason(end))
            record.add_end(job.id, end.attempt, asdict(end))
            record.change(job.id, attempts=present.attempts + 1, handle=None, gpu_ids=(), **_changes(verdict, now))
        step("end-recorded")
        if not isinstance(verdict, Final):
            self._context.note(
                job, "restarting", at=round(verdict.at, 3), reason=verdict.reason, without=list(verdict.excluded_hosts)
            )
        self._context.changed()

    def _swept(self, job: Job, attempt: AttemptPaths, plan: Plan | None) -> tuple[str, ...]:
        """End what a lost supervisor left behind; returns what could not be ended, ``host:pid``, and hosts that do not answer."""
        if job.starter != "local":
            return ()  # whoever ended the supervisor has ended the allocation with it
        _, remaining = self._sweep(job.id, SWEEP_GRACE)
        left = [f"{self._context.host}:{pid}" for pid in remaining]
        if plan is not None and remote.other_hosts(plan):
            there, unknown = remote.sweep(plan, attempt, SWEEP_GRACE)
            left += [*there, *unknown]
        return tuple(left)

    def _verdict(self, job: Job, end: AttemptEnd, now: float) -> Verdict:
        ends = (from_object(AttemptEnd, data) for data in self._store.ends(job.id, job.first_attempt))
        earlier = [known for known in ends if known is not None]
        try:
            plan = Plan.read(JobPaths(Path(job.dir)).plan)
        except PlanFileError as error:
            told = end.state != FAILED or not Path(job.dir).exists()
            return Final(end.state, end.exit_code, end.reason if told else f"{end.reason}; no other attempt can be made: {error}")
        verdict = decide(plan.restart, [*earlier, end], now, self._context.random)
        elsewhere = bool(plan.placement.offered_hosts or plan.launch.backend == "slurm")
        return verdict if isinstance(verdict, Final) or elsewhere else replace(verdict, excluded_hosts=())

    def _plan(self, job: Job) -> Plan | None:
        try:
            return Plan.read(JobPaths(Path(job.dir)).plan)
        except PlanFileError as error:
            log.warning("%s: %s", job.id, error)
            return None

    def _lost(self, job: Job, attempt: AttemptPaths, gone: Gone) -> AttemptEnd:
        """The end of an attempt whose supervisor is gone without a word, judged by the ranks' marks; nothing of it lives then."""
        plan = self._plan(job)
        marks = read_marks(attempt, plan.placement.ranks if plan is not None else job.ranks)
        remaining = self._swept(job, attempt, plan)
        finished = plan is None or not plan.limits.require_finished or attempt.job.finished.exists()
        why = why_marks_are_missing(attempt) if any(mark is None for mark in marks) and attempt.ranks.is_dir() else None
        outcome = judge(Evidence(marks, 0, Stop.read(attempt), finished, why))
        cause, reason = outcome.cause, outcome.reason
        if outcome.state == FAILED and outcome.first_failing is None and cause not in (HANG, PREEMPTION, TIME_LIMIT):
            cause, reason = (LOST_NODE, _lost_reason(job, attempt)) if attempt.claim.exists() else _not_begun(job, attempt)
        now = self._context.clock.wall()
        started = min((mark.started for mark in marks if mark is not None), default=now)
        end = AttemptEnd(
            attempt=job.attempt,
            state=outcome.state,
            cause=cause,
            exit_code=outcome.exit_code,
            reason=reason,
            first_failing_rank=outcome.first_failing.rank if outcome.first_failing else None,
            hosts=tuple(sorted({mark.host for mark in marks if mark is not None})),
            progressed=attempt.progress.exists(),
            started=started,
            ended=now,
            seconds=max(0.0, now - started),
            remaining=remaining,
        )
        end = by_scheduler(end, gone)
        try:
            end.write(attempt)
        except OSError as error:
            log.warning("%s: its end cannot be noted in %s: %s", job.id, attempt.root, error.strerror)
        self._context.note(job, "attempt-end", **asdict(end))
        return end


def _lost_reason(job: Job, attempt: AttemptPaths) -> str:
    if not attempt.job.root.exists():
        return f"its directory {attempt.job.root} was removed while it ran"
    if (full := obstacle(attempt.root)) is not None:
        return f"what ran attempt {job.attempt} is gone without a word, which it could not leave: {full}"
    return f"what ran attempt {job.attempt} is gone without a word: it was killed, or the host was started again"


def _not_begun(job: Job, attempt: AttemptPaths) -> tuple[str, str]:
    """Cause and reason of an attempt that was never claimed."""
    if not attempt.job.root.exists():
        return LOST_NODE, _lost_reason(job, attempt)
    if (full := obstacle(attempt.root)) is not None:
        return NOT_STARTED, f"the supervisor of attempt {job.attempt} ended before it began: {full}"
    lines: list[str] = []
    for file in (attempt.root / "supervisor.log", attempt.job.logs / "slurm.log"):
        with contextlib.suppress(OSError):
            lines += file.read_text("utf-8", "replace").strip().splitlines()
    said = f": {lines[-1][:300]}" if lines else ""
    return NOT_STARTED, f"the supervisor of attempt {job.attempt} ended before it began{said}"


def _cancelled_reason(end: AttemptEnd) -> str:
    left = f"; processes that could not be ended: {', '.join(end.remaining)}" if end.remaining else ""
    return (end.reason if end.cause == CANCELLED and end.reason else "cancelled; all ranks were stopped") + left


def _changes(verdict: Verdict, now: float) -> dict[str, Any]:
    if isinstance(verdict, Final):
        return {
            "state": verdict.state,
            "exit_code": verdict.exit_code,
            "reason": verdict.reason,
            "finished": now,
            "next_try": None,
        }
    return {
        "state": RESTARTING,
        "reason": verdict.reason,
        "next_try": verdict.at,
        "delay": max(0.0, verdict.at - now),
        "excluded": verdict.excluded_hosts,
    }


def _noted(events: list[dict[str, Any]], job: Job) -> bool:
    """Whether the job's end stands in its log already, after the last retry."""
    for event in reversed(events):
        if event["event"] == "retried":
            return False
        if event["event"] == "finished":
            return bool(event.get("state") == job.state)
    return False


def corrected(end: AttemptEnd, gone: Gone) -> AttemptEnd:
    """An end as the attempt wrote it, corrected if only the scheduler knew that the job was cancelled."""
    if gone.cause != CANCELLED or end.cause != PREEMPTION:
        return end
    return replace(end, state=CANCELLED, cause=CANCELLED, exit_code=EXIT_INTERRUPTED, reason=gone.reason)


def by_scheduler(end: AttemptEnd, gone: Gone) -> AttemptEnd:
    """The end of an attempt that wrote none, with what the scheduler says of it, unless the ranks' marks say more."""
    if gone.cause is None or end.first_failing_rank is not None or end.state != FAILED:
        return end
    reason = gone.reason if end.cause != NOT_STARTED else f"{gone.reason}; {end.reason}"
    if gone.cause == CANCELLED:
        return replace(end, state=CANCELLED, cause=CANCELLED, exit_code=EXIT_INTERRUPTED, reason=gone.reason)
    cause = end.cause if gone.cause == FAILURE else gone.cause
    return replace(end, cause=cause, reason=reason)


class RemoteSupervisors:
    """Attempts whose supervisor is a process of another host: a crashed login node, or one whose daemon has lost the record.

    This host cannot ask it, but sees the file that a supervisor touches for as long as it lives.  The time since the last touch
    is measured by this host's own steady clock.  For the engine's thread.
    """

    def __init__(self, context: Context, ending: Ending) -> None:
        self._context = context
        self._ending = ending
        self._touches = Unchanged()

    def reason(self, job: Job, reason: str) -> str:
        """Why a job's state is unknown, and what to do about it once it has shown no life for long."""
        if not self._silent(job):
            return reason
        return (
            f"{reason}; it has shown no life for {duration(SILENT_SECONDS)}: if that host is gone for good, "
            f"`hvdgrab-launch cancel {job.id}` gives it up"
        )

    def given_up(self, job: Job) -> bool:
        """End a job that is to be cancelled if it has shown no life for long; returns whether it did so."""
        if not job.cancel or not self._silent(job):
            return False
        host = (job.handle or {}).get("host")
        text = f"cancelled; its host {host} cannot be asked, and it had shown no life for {duration(SILENT_SECONDS)}"
        now = self._context.clock.wall()
        end = AttemptEnd(job.attempt, CANCELLED, CANCELLED, EXIT_INTERRUPTED, text, started=now, ended=now)
        try:
            end.write(_attempt(job))  # ranks that live all the same see it, and end
        except OSError as error:
            log.warning("%s: its end cannot be noted in its directory: %s", job.id, error)
        self._context.note(job, "attempt-end", attempt=job.attempt, state=CANCELLED, cause=CANCELLED, reason=text)
        self._ending.finish_cancelled(job, text)
        self._touches.forget((job.id, job.attempt))
        return True

    def _silent(self, job: Job) -> bool:
        """Whether the supervisor's file has not been touched for long, as far as this daemon has seen."""
        stamp = 0
        with contextlib.suppress(OSError):
            stamp = os.stat(_attempt(job).alive).st_mtime_ns  # noqa: PTH116 - called often
        return self._touches.seconds((job.id, job.attempt), stamp, self._context.clock.steady()) >= SILENT_SECONDS


def _attempt(job: Job) -> AttemptPaths:
    return JobPaths(Path(job.dir)).attempt(job.attempt)

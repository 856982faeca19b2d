"""From a waiting job to a supervisor whose handle is in the record.

The order makes a crash at any instant harmless: the record says *starting* before anything is started, and the handle comes last.
A start without a handle is looked for (`confirm`) before it is made again, and if two supervisors
meet nevertheless, the attempt's claim decides.
"""

from __future__ import annotations

import errno
from pathlib import Path

from launcher.attempt.starter import Handle, StartError, Unreachable
from launcher.daemon.context import Context, log, step
from launcher.daemon.ending import Ending
from launcher.daemon.record import Job
from launcher.daemon.requests import check_directory
from launcher.errors import LauncherError, PlanError, UsageError
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import STARTING, UNKNOWN, WAITING
from launcher.plan.planning import next_attempt

AGAIN_SECONDS = 10.0
"""Seconds for which a starter is left alone after a start that could not be made."""
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""Errors that say nothing about the job."""


class LostEnvironmentError(LauncherError):
    """The submitter's environment is not kept any more, and the job needs it."""


class Starting:
    """Starts attempts."""

    def __init__(self, context: Context, ending: Ending) -> None:
        self._context = context
        self._store = context.store
        self._ending = ending
        self._not_before: dict[tuple[str, str], float] = {}
        self._where: dict[str, str] = {}
        """What a job's last start could not reach, by job."""

    def may_start(self, job: Job, now: float) -> bool:
        """Whether what the job's last start could not reach may be tried again."""
        return self._not_before.get((job.starter, self._where.get(job.id, "")), 0.0) <= now

    def begin(self, job: Job, gpu_ids: tuple[str, ...], now: float) -> None:
        """Begin the next attempt of a waiting job."""
        if JobPaths(Path(job.dir)).cancel.exists():
            self._ending.cancel_waiting(job)
            return
        with self._store.transaction() as record:
            present = record.get(job.id)
            if present is None or present.cancel:
                return
            begun = record.change(
                job.id, only_in=WAITING, state=STARTING, attempt=job.attempt + 1, gpu_ids=gpu_ids, handle=None, next_try=None,
                delay=None, reason=None, started=job.started or self._context.clock.wall(),
            )  # fmt: skip
        if begun is None:
            return
        step("start-recorded")
        self._context.reasons.pop(job.id, None)
        self._context.note(begun, "starting", attempt=begun.attempt)
        self._launch(begun, now)

    def confirm(self, job: Job, now: float) -> None:
        """Find out what became of a start that has no handle; start again if it had no effect."""
        starter = self._context.starters[job.starter]
        try:
            handle = starter.find(JobPaths(Path(job.dir)), job.attempt)
        except Unreachable as error:
            self._postpone(job, str(error), now, state=UNKNOWN, where=error.where)
            return
        if handle is not None:
            self._confirmed(job, handle)
        elif job.cancel:
            self._ending.finish_cancelled(job)
        else:
            self._launch(job, now)

    def _launch(self, job: Job, now: float) -> None:
        paths = JobPaths(Path(job.dir))
        try:
            plan = self._plan(job, paths)
            environment = self._environment(job, plan)
            step("start-planned")
            handle = self._context.starters[job.starter].start(paths, job.attempt, plan, environment)
        except Unreachable as error:
            self._postpone(job, str(error), now, where=error.where)
        except OSError as error:
            where = f"{error.filename or paths.root}: {error.strerror}"
            if error.errno in _PASSING:
                why = f"attempt {job.attempt} cannot be started now: {where}; it is tried again"
                self._postpone(job, why, now, where=job.id)  # other jobs may lie on another disk
            else:
                self._ending.not_started(job, f"the job directory cannot be used: {where}", final=True)
        except StartError as error:
            self._ending.not_started(job, str(error))
        except (PlanError, UsageError, LostEnvironmentError) as error:
            self._ending.not_started(job, str(error), final=True)
        else:
            step("start-spawned")
            self._confirmed(job, handle)

    def _confirmed(self, job: Job, handle: Handle) -> None:
        self._where.pop(job.id, None)
        with self._store.transaction() as record:
            record.change(job.id, state=STARTING, handle=handle, reason=None)
        step("start-confirmed")
        self._where.pop(job.id, None)
        log.info("%s: attempt %d: %s", job.id, job.attempt, dict(handle))
        self._context.changed()

    def _plan(self, job: Job, paths: JobPaths) -> Plan:
        """The attempt's plan, written where the attempt and people look for it; the submitter has planned the first one."""
        check_directory(paths)
        plan = Plan.read(paths.plan)
        if plan.job.attempt != job.attempt or plan.placement.excluded_hosts != tuple(sorted(job.excluded)):
            plan = self._next_plan(job, plan)
        paths.attempt(job.attempt).create()
        check_directory(paths, job.attempt)
        plan.place(paths)
        return plan

    def _next_plan(self, job: Job, earlier: Plan) -> Plan:
        try:
            return next_attempt(earlier, job.attempt, job.excluded)
        except PlanError:
            if not job.excluded:
                raise
            log.info("%s: too few hosts are left without %s: they are used again", job.id, ", ".join(job.excluded))
            return next_attempt(earlier, job.attempt)

    def _environment(self, job: Job, plan: Plan) -> dict[str, str]:
        kept = self._context.environments.load(job.id)
        if kept is None:
            if plan.job.secrets:
                raise LostEnvironmentError(
                    f"its secrets ({', '.join(plan.job.secrets)}) are kept in memory alone, and were lost when the host was "
                    f"started again; `hvdgrab-launch retry {job.id}` hands them over anew"
                )
            import os

            log.warning("%s: its environment was lost when the host was started again; the daemon's own is used", job.id)
            self._context.note(job, "environment-lost")
            kept = dict(os.environ)
        return kept | ({"CUDA_VISIBLE_DEVICES": ",".join(job.gpu_ids)} if job.gpu_ids else {})

    def _postpone(self, job: Job, reason: str, now: float, state: str = STARTING, where: str = "") -> None:
        self._not_before[job.starter, where] = now + AGAIN_SECONDS
        self._where[job.id] = where
        if (job.reason, job.state) == (reason, state):
            return
        with self._store.transaction() as record:
            record.change(job.id, state=state, reason=reason)
        self._context.note(job, state if state == UNKNOWN else "waiting", reason=reason)
        self._context.changed()

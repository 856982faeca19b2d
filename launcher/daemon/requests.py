"""What clients can ask of the daemon, and what a submitted job directory must be like.

`Requests` is called from the server's threads; the record decides every race with the engine.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hvdgrab
from launcher.daemon.context import Context, log, step
from launcher.daemon.http.messages import DaemonStatus, JobView, Submission
from launcher.daemon.record import Job, RecordError, Transaction
from launcher.errors import EXIT_INTERRUPTED, LauncherError, UnreachableError, UsageError
from launcher.jobdir.events import read_events
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import CANCELLED, FAILED, FINAL, QUEUED, UNDER_WAY, WAITING

CLOSING_SECONDS = 5.0
"""Seconds for which a retry waits until all that follows the job's end has been done."""


class NoSuchJobError(UsageError):
    """No job of this id is in the record."""


class ConflictError(UsageError):
    """The job's state forbids what was asked."""


class Requests:
    """Submissions, cancellations, retries, and views."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store
        self._started = context.clock.wall()
        self._retrying = threading.Lock()

    def submit(self, submission: Submission) -> tuple[JobView, bool]:
        """Record a job, durably.  Repeated for the same id and directory, it changes nothing.

        Returns:
            The job, and whether it is new.

        Raises:
            UsageError: if it is refused.
            RecordError: if it cannot be written.
        """
        present = self._store.get(submission.id)
        if present is not None:
            return self._same(present, submission), False
        job = take_in(submission, self._context.host, self._context.clock.wall())
        if job.starter not in self._context.starters:
            raise UsageError(f"the backend {job.backend} cannot be used by this daemon")
        self._check_dependencies(job)
        with self._kept(job.id, submission.environment):
            step("submit-environment-kept")
            with self._written() as record:
                added = record.add(job)
        step("submit-recorded")
        if added.dir != job.dir:
            return self._same(added, submission), False
        self._context.note(added, "queued", id=added.id, name=added.name, ranks=added.ranks, backend=added.backend)
        step("submit-noted")
        self._context.wake()
        return self._context.view(added), True

    @contextlib.contextmanager
    def _written(self) -> Iterator[Transaction]:
        """A transaction for a request; if it fails, the daemon's status says so from then on."""
        try:
            with self._store.transaction() as record:
                yield record
        except RecordError as error:
            self._context.refuse(str(error))
            raise

    def _same(self, present: Job, submission: Submission) -> JobView:
        if present.dir != submission.dir:
            raise ConflictError(f"the id {present.id} is taken by the job in {present.dir}")
        return self._context.view(present)

    def _check_dependencies(self, job: Job) -> None:
        known = self._store.states(job.depends_on)
        missing = [other for other in job.depends_on if other not in known]
        if missing:
            raise UsageError(f"depends_on: there is no job {missing[0]!r} in the record")

    @contextlib.contextmanager
    def _kept(self, job_id: str, environment: Mapping[str, str]) -> Iterator[None]:
        """Keep an environment; forget it again if the block fails."""
        self._keep(job_id, environment)
        try:
            yield
        except LauncherError:
            job = self._store.get(job_id)
            if job is None or job.closed:
                self._context.environments.forget(job_id)
            raise

    def _keep(self, job_id: str, environment: Mapping[str, str]) -> None:
        try:
            self._context.environments.keep(job_id, environment)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            text = f"the environment cannot be kept in {self._context.dirs.environments}: {reason}"
            if isinstance(error, OSError):
                self._context.refuse(text)
            raise UnreachableError(text) from error

    def forget_orphans(self) -> None:
        """Remove environments whose submission was never recorded, or whose job has ended; before anybody is served."""
        self._context.environments.forget_unfinished()
        for job_id in self._context.environments.kept():
            job = self._store.get(job_id)
            if job is None or job.closed:
                self._context.environments.forget(job_id)

    def cancel(self, job_id: str) -> JobView:
        """Ask for a job's end, durably; harmless if repeated or late."""
        job = self._job(job_id)
        if job.state in FINAL:
            return self._context.view(job)
        marked = mark_cancelled(job)
        step("cancel-marked")
        try:
            changed = self._record_cancel(job)
        except RecordError as error:
            if not marked:
                raise
            raise RecordError(f"{job_id} was asked to end, and the record can note that only later: {error}") from error
        step("cancel-recorded")
        if not job.cancel:
            self._context.note(job, "cancel-requested")
        self._context.wake()
        self._context.changed()
        return self._context.view(changed or self._job(job_id))

    def _record_cancel(self, job: Job) -> Job | None:
        now = self._context.clock.wall()
        with self._written() as record:
            ended = record.change(
                job.id, only_in=WAITING, state=CANCELLED, exit_code=EXIT_INTERRUPTED, finished=now, cancel=True, next_try=None,
                reason="cancelled before it started" if job.attempt == 0 else "cancelled between two attempts",
            )  # fmt: skip
            return ended or record.change(job.id, cancel=True)

    def retry(self, job_id: str, environment: Mapping[str, str]) -> JobView:
        """Queue a failed or cancelled job again, with full restart budgets.

        Raises:
            ConflictError: if it has not ended, or has succeeded.
            UsageError: if its directory or its plan is gone, or cannot be used; the job stays as it is.
        """
        with self._retrying:
            job = self._closed(job_id)
            if not Path(job.dir).exists():
                raise UsageError(f"the directory of {job_id} is gone, {job.dir}: submit the job again from its YAML")
            check_directory(JobPaths(Path(job.dir)))
            Plan.read(JobPaths(Path(job.dir)).plan)
            try:
                JobPaths(Path(job.dir)).cancel.unlink(missing_ok=True)
            except OSError as error:
                raise UsageError(f"{job.dir} cannot be written: {error.strerror}") from error
            with self._kept(job_id, environment), self._written() as record:
                changed = record.reopen(
                    job_id, only_in=(FAILED, CANCELLED), state=QUEUED, exit_code=None, reason=None, finished=None, cancel=False,
                    closed=False, first_attempt=job.attempt + 1, handle=None, next_try=None, delay=None, excluded=(),
                )  # fmt: skip
        if changed is None:
            raise ConflictError(f"{job_id} cannot be queued again now")
        self._context.note(job, "retried")
        self._context.wake()
        return self._context.view(changed)

    def _closed(self, job_id: str) -> Job:
        end = time.monotonic() + CLOSING_SECONDS
        while True:
            job = self._job(job_id)
            if job.state not in (FAILED, CANCELLED):
                done = "has succeeded" if job.state in FINAL else f"has not ended: it is {job.state}"
                raise ConflictError(f"{job_id} {done}; only jobs that failed or were cancelled can be tried again")
            if job.closed:
                return job
            if time.monotonic() > end:
                raise UnreachableError(f"{job_id} has just ended; try again in a moment")
            self._context.wake()
            time.sleep(0.02)

    def view(self, job_id: str) -> JobView:
        """One job."""
        return self._context.view(self._job(job_id))

    def views(self, states: Sequence[str], **wanted: Any) -> list[JobView]:
        """Jobs by order of submission; see `launcher.daemon.record.Store.find`."""
        return [self._context.view(job) for job in self._store.find(states, **wanted)]

    def events(self, job_id: str, after: int) -> list[dict[str, Any]]:
        """What happened to a job, without the first ``after`` events."""
        return read_events(JobPaths(Path(self._job(job_id).dir)).events)[after:]

    @property
    def problem(self) -> str | None:
        """What keeps the daemon from its work now; None if nothing does."""
        return self._context.problem or self._context.refused

    def status(self) -> DaemonStatus:
        """The daemon about itself."""
        context = self._context
        under_way = self._store.find(UNDER_WAY)
        return DaemonStatus(
            host=context.host,
            pid=os.getpid(),
            version=hvdgrab.__version__,
            started=self._started,
            state_dir=str(context.dirs.state),
            socket=str(context.dirs.socket),
            log=str(context.dirs.log),
            spool=str(context.dirs.spool),
            jobs=self._store.counts(),
            max_running=context.capacity.max_running,
            cpus=context.capacity.cpus,
            gpus=len(context.capacity.gpus),
            cpus_used=sum(min(job.cpus, context.capacity.cpus) for job in under_way),
            gpus_used=sum(len(job.gpu_ids) for job in under_way),
            problem=self.problem,
        )

    def stop(self) -> None:
        """End the daemon; jobs go on."""
        self._context.stopping.set()
        self._context.wake()

    def _job(self, job_id: str) -> Job:
        job = self._store.get(job_id)
        if job is None:
            raise NoSuchJobError(f"no job {job_id!r} in the record")
        return job


def mark_cancelled(job: Job) -> bool:
    """Leave the request in the job directory, which the job itself watches; returns whether that worked."""
    try:
        number = os.open(JobPaths(Path(job.dir)).cancel, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        os.close(number)
    except OSError as error:  # the record holds it too
        log.warning("%s: the mark of its cancellation cannot be written: %s", job.id, error)
        return False
    return True


LOCAL_NAMES = ("localhost", "127.0.0.1")


def check_directory(job: JobPaths, attempt: int | None = None) -> None:
    """Raises UsageError unless a job directory is a real directory of this user with real directories and files in it.

    Args:
        job: the directory.
        attempt: an attempt whose directory is looked at too.
    """
    directories = (job.root, job.attempts, job.logs, *([job.attempt(attempt).root] if attempt is not None else ()))
    files, later = (job.spec, job.plan), (job.events, job.cancel)
    for path in (*directories, *files, *later):
        wanted = stat.S_ISDIR if path in directories else stat.S_ISREG
        try:
            found = path.lstat()
        except FileNotFoundError:
            if path in later:
                continue
            raise UsageError(f"{path} is missing") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be looked at: {error.strerror}") from error
        if stat.S_ISLNK(found.st_mode):
            raise UsageError(f"{path} is a link, and links are not followed: submit the directory itself")
        if not wanted(found.st_mode):
            raise UsageError(f"{path} is not what belongs there in a job directory")
        if found.st_uid != os.getuid():
            raise UsageError(f"{path} belongs to user {found.st_uid}, not to you")


def take_in(submission: Submission, host: str, now: float) -> Job:
    """The job of a submission.

    Args:
        submission: what the client sent.
        host: this host.
        now: Unix time, seconds.

    Raises:
        UsageError: naming what is wrong with the directory or its plan.
    """
    job = JobPaths(Path(submission.dir))
    if not job.root.is_absolute() or job.id != submission.id:
        raise UsageError(
            f"the directory of job {submission.id} must be an absolute path that ends with the id, not {submission.dir!r}"
        )
    check_directory(job)
    plan = Plan.read(job.plan)
    if plan.job.id != job.id or plan.job.dir != str(job.root):
        raise UsageError(f"the plan in {job.root} is another job's: {plan.job.id} in {plan.job.dir}")
    here = ranks_here(plan, host)
    return Job(
        id=job.id,
        dir=str(job.root),
        name=plan.job.name,
        state=QUEUED,
        submitted=now,
        ranks=plan.placement.ranks,
        backend=plan.launch.backend,
        starter="slurm" if plan.launch.backend == "slurm" else "local",
        priority=submission.priority,
        depends_on=tuple(dict.fromkeys(submission.depends_on)),
        group_name=submission.group,
        cpus=here * plan.placement.threads_per_rank,
        gpus=here * (plan.placement.gpus_per_rank or 0),
    )


def ranks_here(plan: Plan, host: str) -> int:
    """How many ranks of a plan take slots of this host; inside SLURM's allocations, none."""
    if plan.launch.backend in ("slurm", "srun"):
        return 0
    if not plan.placement.hosts:
        return plan.placement.ranks
    return sum(slots.slots for slots in plan.placement.hosts if slots.name in (host, host.partition(".")[0], *LOCAL_NAMES))

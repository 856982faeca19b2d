"""The daemon's work: one `Engine.tick` looks at everything once.

Every step may be interrupted at any instant; what a tick leaves undone, the next one, or that of the next daemon, finds in the
record and does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launcher.attempt.starter import Alive, Gone, HeldByAnother, Seen, Unknown
from launcher.daemon.context import CLOSE, LOOK, START, STOP, Context, Faults
from launcher.daemon.ending import Ending, RemoteSupervisors
from launcher.daemon.lease import RENEW_SECONDS, LeaseLostError
from launcher.daemon.queue import pick_jobs_to_start
from launcher.daemon.record import Job, RecordError
from launcher.daemon.starting import Starting
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import CANCELLED, FINAL, RUNNING, STARTING, UNDER_WAY, UNKNOWN, WAITING

KILL_AFTER = 60.0
"""Seconds after which a supervisor that was asked to stop is killed."""
QUEUE_SECONDS = 10.0
"""Seconds between two looks at the queue if nothing seems to have changed."""
BUSY_PAUSE, IDLE_PAUSE = 0.2, 1.0
"""Seconds until the next tick, while something is starting or stopping, and otherwise."""
Waiting = tuple[str, int, float | None]
"""One wait of a job: its id, its last attempt, and the end of the back-off."""


class Engine:
    """Drives all jobs; for one thread.

    What it remembers from one tick to the next is only when to do something again: the record holds all else.
    """

    def __init__(self, context: Context, ending: Ending | None = None) -> None:
        self._context = context
        self._store = context.store
        self._ending = ending or Ending(context)
        self._starting = Starting(context, self._ending)
        self._faults = Faults(context)
        self._remote = RemoteSupervisors(context, self._ending)
        self._look_at: dict[str, float] = {}
        """From when on each starter may be asked again about its supervisors, by its name."""
        self._due_at: dict[Waiting, float] = {}
        """When each waiting job may start: set once, when it is first seen to wait, and kept for as long as it waits."""
        self._asked_at: dict[tuple[str, int], float] = {}
        """When the supervisor of a cancelled job was last asked to stop, by job and attempt."""
        self._renew_at = float("-inf")
        """When the lease is to be renewed."""
        self._queue_seen, self._queue_seen_at = -1, float("-inf")
        """The record's count of changes when the queue was last looked through, and the time of that."""

    def tick(self, now: float) -> float:
        """Look at everything once.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            Seconds until the next tick is useful, unless something wakes the loop before.

        Raises:
            LeaseLostError: if another daemon has taken the record over.
            RecordError: if the record cannot be used; nothing was done that it does not hold.
        """
        self._renew(now)
        unconfirmed = [job for job in self._store.find((STARTING, UNKNOWN)) if job.handle is None]
        for job in unconfirmed:
            if self._starting.may_start(job, now):
                self._guarded(job, START, self._starting.confirm, job, now)
        self._look(now)
        under_way = self._store.find(UNDER_WAY)
        for job in under_way:
            if job.cancel and job.handle is not None:
                self._guarded(job, STOP, self._stop, job, now)
        self._start_due(now)
        for job in self._store.find(FINAL, closed=False):
            if self._guarded(job, CLOSE, self._ending.close, job):
                self._faults.forget(job)
        changing = (job for job in under_way if job.state == STARTING or job.cancel)
        busy = bool(unconfirmed) or any(not self._context.starters[job.starter].interval for job in changing)
        next_due = min((at for at in self._due_at.values() if at > now), default=now + IDLE_PAUSE)
        return min(BUSY_PAUSE if busy else IDLE_PAUSE, max(0.01, next_due - now))

    def _guarded(self, job: Job, kind: str, action: Callable[..., None], *arguments: object) -> bool:
        """Keep what goes wrong with one job from the others; returns whether nothing did."""
        try:
            action(*arguments)
        except (RecordError, LeaseLostError):
            raise
        except Exception as error:
            self._faults.note(job, kind, error)
            return False
        self._faults.over(job, kind)
        return True

    def _renew(self, now: float) -> None:
        if now >= self._renew_at:
            self._store.renew()
            self._renew_at = now + RENEW_SECONDS

    def _look(self, now: float) -> None:
        jobs = [job for job in self._store.find(UNDER_WAY) if job.handle is not None]
        for name, starter in self._context.starters.items():
            mine = {job.id: job for job in jobs if job.starter == name}
            if not mine or now < self._look_at.get(name, now):
                continue
            self._look_at[name] = now + starter.interval
            try:
                seen = starter.look({job_id: job.handle for job_id, job in mine.items() if job.handle is not None})
            except (RecordError, LeaseLostError):
                raise
            except Exception as error:  # one kind of jobs is no reason to neglect the others
                self._faults.note_starter(name, error)
                continue
            self._faults.over_starter(name)
            for job_id, answer in seen.items():
                self._guarded(mine[job_id], LOOK, self._seen, mine[job_id], answer)

    def _seen(self, job: Job, answer: Seen) -> None:
        match answer:
            case Alive():
                job = self._ending.catch_up(job, answer.attempt)
                running = answer.running and (job.state == RUNNING or _has_ranks(job))
                self._set(job, RUNNING if running else STARTING, answer.note if running else answer.detail)
            case Gone():
                self._ended(job, answer)
            case HeldByAnother():
                with self._store.transaction() as record:
                    record.change(job.id, handle=answer.handle)
            case Unknown() if job.handle is not None and job.handle.get("kind") == "process":
                self._seen_remote(job, answer.reason)
            case Unknown():
                self._set(job, UNKNOWN, answer.reason)

    def _seen_remote(self, job: Job, reason: str) -> None:
        """A process of another host: its last act shows that it has ended, and its silence that it may have been lost."""
        if JobPaths(Path(job.dir)).attempt(job.attempt).end.exists():
            self._ended(job, Gone())
        elif not self._remote.given_up(job):
            self._set(job, UNKNOWN, self._remote.reason(job, reason))

    def _ended(self, job: Job, gone: Gone) -> None:
        self._ending.ended(job, gone)
        self._asked_at.pop((job.id, job.attempt), None)

    def _set(self, job: Job, state: str, reason: str | None) -> None:
        if (job.state, job.reason) == (state, reason):
            return
        with self._store.transaction() as record:
            record.change(job.id, only_in=UNDER_WAY, state=state, reason=reason)
        if job.state != state:
            self._context.note(job, state, attempt=job.attempt, **({"reason": reason} if reason else {}))
        self._context.changed()

    def _stop(self, job: Job, now: float) -> None:
        """Ask a cancelled job's supervisor to stop; kill it if it does not."""
        key = (job.id, job.attempt)
        asked = self._asked_at.get(key)
        if job.handle is None or (asked is not None and now < asked + KILL_AFTER):
            return
        if asked is None:
            Stop(CANCELLED, "the user").write(JobPaths(Path(job.dir)).attempt(job.attempt))
        self._context.starters[job.starter].stop(job.handle, kill=asked is not None)
        self._asked_at[key] = now

    def _start_due(self, now: float) -> None:
        if not self._queue_changed(now):
            return
        waiting = self._store.find(WAITING)
        self._due_at = {_waiting(job): self._due_at.get(_waiting(job), now + self._back_off(job)) for job in waiting}
        due = [job for job in waiting if self._due_at[_waiting(job)] <= now and self._starting.may_start(job, now)]
        needed = sorted({other for job in due for other in job.depends_on})
        picked = pick_jobs_to_start(due, self._store.find(UNDER_WAY), self._store.states(needed), self._context.capacity)
        self._context.reasons.clear()
        self._context.reasons.update(picked.reasons)
        for job in due:
            if job.id in picked.never:
                self._guarded(job, START, self._ending.never, job, picked.never[job.id])
        for job, gpus in picked.starts:
            if self._context.stopping.is_set():
                return
            if self._starting.may_start(job, now):
                self._guarded(job, START, self._starting.begin, job, gpus, now)
            self._renew(self._context.clock.steady())

    def _queue_changed(self, now: float) -> bool:
        """Whether it is worth looking through the queue: something was added or ended, a back-off is over, or it is time."""
        became_due = any(self._queue_seen_at < at <= now for at in self._due_at.values())
        if self._store.changes == self._queue_seen and now < self._queue_seen_at + QUEUE_SECONDS and not became_due:
            return False
        self._queue_seen, self._queue_seen_at = self._store.changes, now
        return True

    def _back_off(self, job: Job) -> float:
        """Seconds that a job has to wait from now on; never more than was meant, even if the clock was set back."""
        if job.next_try is None:
            return 0.0
        return max(0.0, min(job.next_try - self._context.clock.wall(), job.delay or 0.0))


def _waiting(job: Job) -> Waiting:
    return job.id, job.attempt, job.next_try


def _has_ranks(job: Job) -> bool:
    try:
        return any(JobPaths(Path(job.dir)).attempt(job.attempt).ranks.glob("rank-*.json"))
    except OSError:
        return False

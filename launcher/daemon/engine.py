"""The daemon's work: one `Engine.tick` looks at everything once.

Every step may be interrupted at any instant; what a tick leaves undone, the next one, or that of the next daemon, finds in the
record and does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launcher.attempt.starter import Alive, Gone, Seen, Unreachable
from launcher.daemon.context import CLOSE, LOOK, START, STOP, Context, Faults
from launcher.daemon.ending import Ending, RemoteSupervisors, catch_up
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
"""The queue is looked through at least so often, even where nothing seems to have changed."""
BUSY_PAUSE, IDLE_PAUSE = 0.2, 1.0
"""Seconds until the next tick, while something is starting or stopping, and otherwise."""


class Engine:
    """Drives all jobs; for one thread."""

    def __init__(self, context: Context, ending: Ending | None = None) -> None:
        self._context = context
        self._store = context.store
        self._ending = ending or Ending(context)
        self._starting = Starting(context, self._ending)
        self._faults = Faults(context)
        self._elsewhere = RemoteSupervisors(context, self._ending)
        self._looked: dict[str, float] = {}
        self._due: dict[tuple[str, int], float] = {}
        self._ready: set[tuple[str, int]] = set()
        self._asked: dict[tuple[str, int], float] = {}
        self._renewed: float | None = None
        self._queue_at = 0.0
        self._queue_seen = -1

    def tick(self, now: float) -> float:
        """Look at everything once.

        Args:
            now: seconds of a clock that never goes back.

        Returns:
            Seconds until the next tick is useful, unless something wakes the loop before.

        Raises:
            LeaseLostError: where another daemon has taken the record over.
            RecordError: where the record cannot be used; nothing was done that it does not hold.
        """
        self._renew(now)
        busy = False
        for job in self._store.find((STARTING, UNKNOWN)):
            if job.handle is None:
                busy = True
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
        busy = busy or any(
            (job.state == STARTING or job.cancel) and not self._context.starters[job.starter].interval for job in under_way
        )
        return min(BUSY_PAUSE if busy else IDLE_PAUSE, max(0.01, min(self._due.values(), default=now + IDLE_PAUSE) - now))

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
        if self._renewed is None or now - self._renewed >= RENEW_SECONDS:
            self._store.renew()
            self._renewed = now

    def _look(self, now: float) -> None:
        jobs = [job for job in self._store.find(UNDER_WAY) if job.handle is not None]
        for name, starter in self._context.starters.items():
            mine = {job.id: job for job in jobs if job.starter == name}
            if not mine or now < self._looked.get(name, -starter.interval) + starter.interval:
                continue
            self._looked[name] = now
            try:
                seen = starter.look({job_id: job.handle for job_id, job in mine.items() if job.handle is not None})
            except (RecordError, LeaseLostError):
                raise
            except Exception as error:  # one kind of jobs is no reason to neglect the others
                self._faults.note_starter(name, error)
                continue
            self._faults.over_starter(name)
            for job_id, answer in seen.items():
                job = mine[job_id]
                self._guarded(job, LOOK, self._seen, job, answer)

    def _seen(self, job: Job, answer: Seen) -> None:
        if isinstance(answer, Alive):
            self._alive(job, answer)
        elif isinstance(answer, Gone):
            if not self._found_elsewhere(job):
                self._ended(job, answer)
        elif job.handle is not None and job.handle.get("kind") == "process":
            self._seen_elsewhere(job, answer.reason)
        else:
            self._set(job, UNKNOWN, answer.reason)

    def _seen_elsewhere(self, job: Job, reason: str) -> None:
        """A process of another host: its last act shows that it has ended, and its silence that it may have been lost."""
        if _attempt_ended(job):
            self._ended(job)
        elif not self._elsewhere.given_up(job):
            self._set(job, UNKNOWN, self._elsewhere.reason(job, reason))

    def _alive(self, job: Job, answer: Alive) -> None:
        job = catch_up(self._store, job)
        running = answer.running and (job.state == RUNNING or _has_ranks(job))
        self._set(job, RUNNING if running else STARTING, answer.note if running else answer.detail)

    def _ended(self, job: Job, gone: Gone | None = None) -> None:
        self._ending.ended(job, gone)
        self._asked.pop((job.id, job.attempt), None)

    def _found_elsewhere(self, job: Job) -> bool:
        """Whether another supervisor holds the attempt than the one that is gone: the one that lost the race for the claim."""
        starter = self._context.starters[job.starter]
        paths = JobPaths(Path(job.dir))
        if paths.attempt(job.attempt).end.exists():
            return False
        try:
            handle = starter.find(paths, job.attempt)
            if handle is None or handle == job.handle or isinstance(starter.look({job.id: handle})[job.id], Gone):
                return False
        except Unreachable as error:
            self._set(job, UNKNOWN, str(error))
            return True
        with self._store.transaction() as record:
            record.change(job.id, handle=handle)
        return True

    def _set(self, job: Job, state: str, reason: str | None) -> None:
        if (job.state, job.reason) == (state, reason):
            return
        with self._store.transaction() as record:
            record.change(job.id, only_in=UNDER_WAY, state=state, reason=reason)
        if job.state != state:
            self._context.note(job, state, attempt=job.attempt, **({"reason": reason} if reason else {}))
        self._context.changed()

    def _stop(self, job: Job, now: float) -> None:
        """Ask a cancelled job's supervisor to stop; kill it where it does not."""
        key = (job.id, job.attempt)
        asked = self._asked.get(key)
        if job.handle is None or (asked is not None and now < asked + KILL_AFTER):
            return
        if asked is None:
            Stop(CANCELLED, "the user").write(JobPaths(Path(job.dir)).attempt(job.attempt))
        self._context.starters[job.starter].stop(job.handle, kill=asked is not None)
        self._asked[key] = now

    def _start_due(self, now: float) -> None:
        if not self._queue_changed(now):
            return
        waiting = self._store.find(WAITING)
        self._forget_others({(job.id, job.attempt) for job in waiting})
        due = [job for job in waiting if self._is_due(job, now) and self._starting.may_start(job, now)]
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
        due = any(at <= now for at in self._due.values())
        if self._store.changes == self._queue_seen and now < self._queue_at and not due:
            return False
        self._queue_seen, self._queue_at = self._store.changes, now + QUEUE_SECONDS
        return True

    def _forget_others(self, waiting: set[tuple[str, int]]) -> None:
        self._due = {key: at for key, at in self._due.items() if key in waiting}
        self._ready &= waiting

    def _is_due(self, job: Job, now: float) -> bool:
        """Whether a back-off is over, by the steady clock: a clock that was set back makes nobody wait longer than was meant."""
        key = (job.id, job.attempt)
        if job.next_try is None or key in self._ready:
            return True
        if key not in self._due:
            left = min(job.next_try - self._context.clock.wall(), job.delay or 0.0)
            self._due[key] = now + max(0.0, left)
        if self._due[key] > now:
            return False
        del self._due[key]
        self._ready.add(key)
        return True


def _has_ranks(job: Job) -> bool:
    try:
        return any(JobPaths(Path(job.dir)).attempt(job.attempt).ranks.glob("rank-*.json"))
    except OSError:
        return False


def _attempt_ended(job: Job) -> bool:
    return JobPaths(Path(job.dir)).attempt(job.attempt).end.exists()

"""Attempts that a job's own batch script has begun, because SLURM put the job back, and what SLURM says of ends."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from launcher.attempt.starter import Gone
from launcher.daemon.record.jobs import Store
from launcher.daemon.record.rows import Job
from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import CANCELLED, FAILED, FAILURE, LOST_NODE, NOT_STARTED, PREEMPTION, UNDER_WAY


def catch_up(store: Store, job: Job) -> Job:
    """The job at the newest attempt that was begun, with the ends of those before in the record; only SLURM begins any."""
    if job.starter != "slurm":
        return job
    paths = JobPaths(Path(job.dir))
    begun = [number for number in paths.attempt_numbers() if number > job.attempt and paths.attempt(number).claim.exists()]
    if not begun:
        return job
    with store.transaction() as record:
        for number in range(job.attempt, begun[-1]):
            end = AttemptEnd.read(paths.attempt(number)) or _cut_off(number)
            record.add_end(job.id, number, asdict(end))
        passed = begun[-1] - job.attempt
        changed = record.change(job.id, only_in=UNDER_WAY, attempt=begun[-1], attempts=job.attempts + passed)
    return changed or job


def _cut_off(number: int) -> AttemptEnd:
    return AttemptEnd(number, FAILED, LOST_NODE, EXIT_FAILED, "SLURM put the job back; what ran the attempt left no word")


def corrected(end: AttemptEnd, gone: Gone) -> AttemptEnd:
    """An end as the job itself wrote it, unless only the scheduler knew that somebody had cancelled the job."""
    if gone.cause != CANCELLED or end.cause != PREEMPTION:
        return end
    return replace(end, state=CANCELLED, cause=CANCELLED, exit_code=EXIT_INTERRUPTED, reason=gone.reason)


def by_scheduler(end: AttemptEnd, gone: Gone) -> AttemptEnd:
    """The end of an attempt that left no word, with what the scheduler says of it, where that is more than is known otherwise."""
    if gone.cause is None or end.first_failing_rank is not None or end.state != FAILED:
        return end
    reason = gone.reason if end.cause != NOT_STARTED else f"{gone.reason}; {end.reason}"
    if gone.cause == CANCELLED:
        return replace(end, state=CANCELLED, cause=CANCELLED, exit_code=EXIT_INTERRUPTED, reason=gone.reason)
    cause = end.cause if gone.cause == FAILURE else gone.cause
    return replace(end, cause=cause, reason=reason)

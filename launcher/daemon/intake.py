"""What a submitted job directory must be like before the daemon takes it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from launcher.daemon.http.messages import Submission
from launcher.daemon.record.rows import Job
from launcher.errors import UsageError
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import QUEUED

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

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

PLAN_MOST = 16 << 20
"""Bytes of a plan."""
LOCAL_NAMES = ("localhost", "127.0.0.1")


def read_plan(path: Path) -> Plan:
    """A plan that a client wrote; links are not followed.

    Raises:
        UsageError: where it is missing or no plan.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_size > PLAN_MOST:
                raise UsageError(f"{path} is no plan")
            return Plan.from_json(file.read().decode("ascii"))
    except OSError as error:
        reason = "it is a link, and links are not followed" if path.is_symlink() else error.strerror
        raise UsageError(f"the plan {path} cannot be read: {reason}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is no plan of this version of hvdgrab-launch: {error}") from error


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
        UsageError: naming what is wrong with the directory.
    """
    job = JobPaths(Path(submission.dir))
    if not job.root.is_absolute() or job.id != submission.id:
        raise UsageError(
            f"the directory of job {submission.id} must be an absolute path that ends with the id, not {submission.dir!r}"
        )
    check_directory(job)
    plan = read_plan(job.plan)
    if plan.job_id != job.id or plan.job_dir != str(job.root):
        raise UsageError(f"the plan in {job.root} is another job's: {plan.job_id} in {plan.job_dir}")
    here = ranks_here(plan, host)
    return Job(
        id=job.id,
        dir=str(job.root),
        name=plan.name,
        state=QUEUED,
        submitted=now,
        ranks=plan.ranks,
        backend=plan.backend,
        starter="slurm" if plan.backend == "slurm" else "local",
        priority=submission.priority,
        depends_on=tuple(dict.fromkeys(submission.depends_on)),
        group_name=submission.group,
        cpus=here * plan.threads_per_rank,
        gpus=here * (plan.gpus_per_rank or 0),
    )


def ranks_here(plan: Plan, host: str) -> int:
    """How many ranks of a plan take slots of this host; inside SLURM's allocations, none."""
    if plan.backend in ("slurm", "srun"):
        return 0
    if not plan.hosts:
        return plan.ranks
    return sum(slots.slots for slots in plan.hosts if slots.name in (host, host.partition(".")[0], *LOCAL_NAMES))

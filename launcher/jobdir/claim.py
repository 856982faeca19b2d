"""Who runs an attempt: one supervisor, decided by a file that can be made only once."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass

from launcher.host.files import as_text, create_once, read_as, reserve
from launcher.host.processes import own_identity
from launcher.jobdir.paths import AttemptPaths

EXIT_CLAIMED = 75
"""Exit code of a supervisor that found the attempt taken."""


@dataclass(frozen=True)
class Claim:
    """The supervisor of an attempt."""

    host: str
    pid: int
    pid_started: int | None
    """Clock ticks since boot; see `launcher.host.processes`."""
    time: float
    """Unix time, seconds."""
    slurm_job_id: str | None = None
    slurm_cluster: str | None = None
    """The cluster of that job: ids are each cluster's own."""

    @classmethod
    def read(cls, attempt: AttemptPaths) -> Claim | None:
        """The claim of an attempt; None if nobody has claimed it."""
        return read_as(cls, attempt.claim)


def take(attempt: AttemptPaths) -> bool:
    """Claim an attempt for this process; False if it is taken already, also by this process.

    Raises:
        OSError: if the job directory cannot be written.
    """
    attempt.create()
    job_id, cluster = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_CLUSTER_NAME")
    claim = Claim(**own_identity(), time=round(time.time(), 3), slurm_job_id=job_id, slurm_cluster=cluster if job_id else None)
    taken = create_once(attempt.claim, as_text(asdict(claim)))
    if taken:
        reserve(attempt.root)
    return taken


def superseded(attempt: AttemptPaths) -> bool:
    """Whether a later attempt of the job was claimed: this one may then change nothing any more."""
    return any(attempt.job.attempt(number).claim.exists() for number in attempt.job.attempt_numbers() if number > attempt.number)

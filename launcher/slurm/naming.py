"""Which job of SLURM runs an attempt, for people who look for it with SLURM's own programs."""

from __future__ import annotations

from typing import Any

from launcher.jobdir.claim import Claim
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.slurm.submission import Submission


class NamingLog(EventLog):
    """Events of an attempt inside SLURM: that of its start names the job of SLURM."""

    def __init__(self, job: JobPaths, slurm_job_id: str) -> None:
        super().__init__(job)
        self._slurm_job_id = slurm_job_id

    def add(self, event: str, **details: Any) -> None:
        """Append one event."""
        super().add(event, **details, **({"slurm_job_id": self._slurm_job_id} if event == "started" else {}))


def job_of(attempt: AttemptPaths) -> tuple[str | None, str | None]:
    """SLURM's id of the job that runs an attempt, ran it or will, and its cluster where the user had named any; None without."""
    claim, submission = Claim.read(attempt), Submission.read(attempt)
    number = (claim.slurm_job_id if claim is not None else None) or (submission.job_id if submission is not None else None)
    if number is None or submission is None or submission.clusters is None:
        return number, None
    return number, submission.cluster or submission.clusters

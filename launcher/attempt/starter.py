"""How a supervisor comes to life and is looked at.

A starter brings ``python -m launcher.supervise JOBDIR ATTEMPT`` to life somewhere and can say later whether it still lives.  It
never judges how an attempt ended: only the attempt's own ``end.json`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from launcher.errors import LauncherError

if TYPE_CHECKING:
    from launcher.jobdir.paths import JobPaths
    from launcher.jobdir.plan import Plan

Handle = Mapping[str, Any]
"""What names a started supervisor for good; JSON, with ``kind``: ``{"kind": "process", "host", "pid", "pid_started"}`` or
``{"kind": "slurm", "job_id", "cluster"}``."""


@dataclass(frozen=True)
class Alive:
    """It was seen."""

    detail: str | None = None
    """More about it, for people, such as ``pending in partition gpu: Resources``."""
    running: bool = True
    """Whether it has been started; False while a scheduler holds it back."""
    note: str | None = None
    """What people should know of one that was started: that a scheduler has suspended it."""


@dataclass(frozen=True)
class Gone:
    """It is certainly not there any more."""

    cause: str | None = None
    """What a scheduler says ended it, a cause of `launcher.attempt.judge`: for attempts that could not say it themselves."""
    reason: str | None = None
    """The same in words."""


@dataclass(frozen=True)
class Unknown:
    """It cannot be known at present."""

    reason: str


Seen = Alive | Gone | Unknown


class Unreachable(LauncherError):
    """Whether an attempt was started cannot be known at present: nothing may be started in its place."""

    def __init__(self, text: str, where: str = "") -> None:
        super().__init__(text)
        self.where = where
        """What cannot be reached, such as one of several clusters: jobs that go elsewhere need not wait."""


class StartError(LauncherError):
    """An attempt was certainly not started, and trying again as it stands is of no use."""


class Starter(Protocol):
    """One way to start supervisors.  Every method may be called again after a crash of the caller."""

    name: str
    """For messages: local, slurm."""
    interval: float
    """Seconds between two calls of `look`, at least; 0 where looking costs nothing."""

    def start(self, job: JobPaths, attempt: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
        """Bring the supervisor of an attempt to life.

        Called again for the same attempt it may start a second supervisor, which finds the attempt's claim and ends.

        Args:
            job: the job directory, with ``attempts/000N/plan.json`` written.
            attempt: from 1.
            plan: what that file holds.
            environment: the whole environment of the supervisor.

        Raises:
            StartError: where it certainly was not started.
            Unreachable: where that cannot be known.
        """
        ...

    def find(self, job: JobPaths, attempt: int) -> Handle | None:
        """What an earlier `start` of this attempt may have brought to life, living or not; None where there was none.

        Raises:
            Unreachable: where it cannot be known.
        """
        ...

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, Seen]:
        """What has become of supervisors, in one query for all of them.

        Args:
            handles: by job id.

        Returns:
            By job id, one for every handle.
        """
        ...

    def stop(self, handle: Handle, kill: bool) -> None:
        """Ask a supervisor to stop its attempt, or kill it.  Harmless where it is gone.  Returns at once."""
        ...

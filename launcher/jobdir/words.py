"""The words for a job's state and for the cause of an end, each written here alone, and a job as the daemon shows it.

Standard library only, and nothing that is slow to import: the command line needs it for every command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

State = Literal["queued", "starting", "running", "restarting", "succeeded", "failed", "cancelled", "unknown"]
STATES: tuple[str, ...] = get_args(State)
QUEUED, STARTING, RUNNING, RESTARTING, SUCCEEDED, FAILED, CANCELLED, UNKNOWN = STATES
FINAL = (SUCCEEDED, FAILED, CANCELLED)
WAITING = (QUEUED, RESTARTING)
"""No attempt is under way: the job waits for its turn, or for the end of a back-off."""
LIVE = (STARTING, RUNNING)
"""An attempt runs."""
UNDER_WAY = (*LIVE, UNKNOWN)
"""An attempt was begun, and its end is not known."""

FINISHED, FAILURE, HANG, LOST_NODE = "finished", "failure", "hang", "lost_node"
PREEMPTION, TIME_LIMIT, NOT_STARTED = "preemption", "time_limit", "not_started"
STOP_CAUSES = (CANCELLED, PREEMPTION, TIME_LIMIT, HANG, LOST_NODE, FAILURE, NOT_STARTED)
"""Why an attempt may be asked to stop: ``cause`` in ``stop.json``."""
END_CAUSES = (FINISHED, *STOP_CAUSES)
"""Why an attempt ended: ``cause`` in ``end.json``."""
GENTLE_CAUSES = (PREEMPTION, TIME_LIMIT)
"""Causes for which the training is given time to save its state."""
STARTER_GONE, SUPERVISOR_GONE, SUPERSEDED = "starter_gone", "supervisor_gone", "superseded"
"""Further causes for which a rank's wrapper stops its program by itself: the process that started the rank has gone, the
attempt's supervisor has gone, or a later attempt of the job runs."""


@dataclass(frozen=True)
class JobView:
    """A job as the daemon, or its record, shows it.  All times are Unix times in seconds."""

    id: str
    name: str
    state: str
    """One of `STATES`."""
    exit_code: int | None
    """None until the state is final."""
    dir: str
    """The job directory, absolute."""
    reason: str | None
    """Why it is in this state, for people: what it waits for, how it failed, why its state is unknown."""
    submitted: float
    started: float | None
    """When its first attempt began."""
    finished: float | None
    seconds: float | None
    """From submission to the end."""
    ranks: int
    backend: str
    attempt: int
    """Number of the present or last attempt; 0 before the first."""
    attempts: int
    """Attempts that have ended."""
    group: str | None
    priority: int
    owner: str
    """The host whose daemon looks after it."""
    next_try: float | None
    """When the next attempt may begin, in state restarting."""
    depends_on: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobView:
        """The view in a reply; names that this version does not know are passed over."""
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        return cls(**{**known, "depends_on": tuple(data.get("depends_on") or ())})

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {**vars(self), "depends_on": list(self.depends_on)}

    @property
    def final(self) -> bool:
        """Whether nothing changes any more."""
        return self.state in FINAL


@dataclass(frozen=True)
class Submission:
    """What a client hands over: a job directory that is written, and what cannot be in it."""

    id: str
    dir: str
    """The job directory, absolute; its name is the id, and it holds ``spec.yaml`` and ``plan.json``."""
    environment: Mapping[str, str] = field(repr=False)
    """The submitter's whole environment, secrets included."""
    priority: int = 0
    """Higher starts first."""
    depends_on: tuple[str, ...] = ()
    """Ids of jobs that must have succeeded."""
    group: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {**vars(self), "environment": dict(self.environment), "depends_on": list(self.depends_on)}


@dataclass(frozen=True)
class DaemonStatus:
    """A running daemon about itself."""

    host: str
    pid: int
    version: str
    started: float
    """Unix time, seconds."""
    state_dir: str
    socket: str
    log: str
    spool: str
    jobs: Mapping[str, int]
    """Number of jobs by state."""
    max_running: int | None
    cpus: int
    gpus: int
    cpus_used: int
    gpus_used: int
    problem: str | None
    """What keeps it from its work at present, such as a full disk; None where nothing does."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DaemonStatus:
        """The status in a reply; names that this version does not know are passed over."""
        return cls(**{entry.name: data[entry.name] for entry in fields(cls)})

"""What travels between the daemon and its clients.

Standard library only: the command line imports this for every command.  The server checks what it receives by the same classes:
`Limits` and `EnvironmentValues` tell pydantic, which makes the OpenAPI document from them, what a field may hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from launcher.jobdir.paths import ID_PATTERN, NAME_PATTERN
from launcher.jobdir.words import FINAL

PROBLEM_HEADER = "Hvdgrab-Problem"
"""Header of an answer: what keeps the daemon from its work, as a JSON string."""
PRIORITY_MOST = 1_000_000
ENVIRONMENT_MOST = 4 << 20
"""Bytes of a submitter's environment."""


class Limits:
    """What pydantic allows a field, beyond its type: ``pattern``, ``max_length``, ``ge``, ``le``."""

    def __init__(self, **limits: Any) -> None:
        self._limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Add the limits to the type's own schema."""
        return {**handler(source), **self._limits}


class EnvironmentValues:
    """Checks an environment by hand: values may hold bytes that are no text, which stand as lone surrogates (PEP 383)."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        """Check by `_environment` alone."""
        return {"type": "function-plain", "function": {"type": "no-info", "function": _environment}}

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """An object of strings."""
        return {"type": "object", "additionalProperties": {"type": "string"}}


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("must be an object of names and values")
    size = 0
    for name, text in value.items():
        if not isinstance(name, str) or not isinstance(text, str) or not name or "=" in name or "\0" in name + text:
            raise ValueError("must hold names without = and values without zero bytes, both text")
        try:
            size += len(name.encode("utf-8", "surrogateescape")) + len(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            raise ValueError("holds half of a character pair, which stands for no bytes") from None
    if size > ENVIRONMENT_MOST:
        raise ValueError(f"is larger than {ENVIRONMENT_MOST} bytes")
    return value


JobId = Annotated[str, Limits(pattern=f"^{ID_PATTERN}$", max_length=100)]
Name = Annotated[str, Limits(pattern=f"^{NAME_PATTERN}$", max_length=64)]
Group = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
Beginning = Annotated[str, Limits(pattern=r"^[A-Za-z0-9._-]*$", max_length=100)]
Environment = Annotated[Mapping[str, str], EnvironmentValues()]


@dataclass(frozen=True)
class Submission:
    """A job directory that is written, and what cannot be in it."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    id: JobId
    dir: Annotated[str, Limits(pattern=r"^/[^\x00]*$", max_length=4096)]
    """The job directory, absolute; its name is the id, and it holds ``spec.yaml`` and ``plan.json``."""
    environment: Environment = field(repr=False)
    """The submitter's whole environment, secrets included; never shown again."""
    priority: Annotated[int, Limits(ge=-PRIORITY_MOST, le=PRIORITY_MOST)] = 0
    """Higher starts first."""
    depends_on: Annotated[tuple[JobId, ...], Limits(max_length=1000)] = ()
    """Ids of jobs that must have succeeded."""
    group: Group | None = None

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {**vars(self), "environment": dict(self.environment), "depends_on": list(self.depends_on)}


@dataclass(frozen=True)
class Retry:
    """What a job needs to be started again."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    environment: Environment = field(repr=False)
    """The submitter's whole environment, secrets included."""

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return {"environment": dict(self.environment)}


@dataclass(frozen=True)
class Problem:
    """Why a request was refused."""

    detail: str


@dataclass(frozen=True)
class JobView:
    """A job as the daemon, or its record, shows it.  All times are Unix times in seconds."""

    id: str
    name: str
    state: str
    """One of `launcher.jobdir.words.STATES`."""
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
        """The view in a reply; names that this version does not know are ignored."""
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
    """What keeps it from its work now, such as a full disk; None if nothing does."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DaemonStatus:
        """The status in a reply; names that this version does not know are ignored."""
        return cls(**{name: data[name] for name in cls.__dataclass_fields__})

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        return asdict(self)

"""The frozen plan of an attempt: what ``--dry-run`` prints, ``plan.json`` holds and the attempt carries out.

`launcher.plan.planning` makes plans.  Only the standard library is imported here: every rank's wrapper reads its plan.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from launcher.errors import UsageError
from launcher.host.files import replace_text
from launcher.jobdir.paths import AttemptPaths, JobPaths

PLAN_VERSION = 3
PLAN_MOST = 16 << 20
"""Bytes of a plan.json."""
SHORTEST_SECRET = 4
"""Characters of the shortest value that is hidden in the logs: shorter ones would hide ordinary text."""
T = TypeVar("T")


class PlanFileError(UsageError):
    """A plan.json is missing, unreadable, or not of this version."""


@dataclass(frozen=True)
class HostSlots:
    """A host, and how many ranks run there."""

    name: str
    slots: int


@dataclass(frozen=True)
class Job:
    """Which job and attempt this is, and what its ranks run."""

    id: str
    dir: str
    """The job directory, absolute."""
    attempt: int
    """Which start of the job this is, from 1."""
    name: str
    spec_sha256: str
    """Digest of the resolved spec, as it is frozen into the job directory."""
    group: str | None
    priority: int
    depends_on: tuple[str, ...]
    """Names or ids of jobs that must have succeeded before."""
    command: tuple[str, ...]
    """What every rank that trains runs."""
    server_command: tuple[str, ...]
    """What the server rank runs; empty if there is none."""
    workdir: str
    env: dict[str, str]
    """The spec's ``env``, which the wrapper around each rank applies on top of all other variables."""
    secrets: tuple[str, ...]
    """Names of inherited variables whose values are hidden in the logs."""


@dataclass(frozen=True)
class Placement:
    """How many ranks run, on which hosts, and what each of them gets."""

    host: str
    """The host on which the plan was made."""
    cores: int
    """Its cores."""
    ranks: int
    """Processes that are started: those that train, and a server rank behind them if there is one."""
    wanted_ranks: int
    """Ranks that train according to the spec; fewer start only if hosts are missing and ``restart.min_ranks`` allows it."""
    server_ranks: int
    """1 if the last rank runs `Job.server_command` instead of `Job.command`."""
    hosts: tuple[HostSlots, ...]
    """Where the ranks run, in the order of the ranks, with as many slots as ranks; empty: on this host."""
    offered_hosts: tuple[HostSlots, ...]
    """All hosts of the spec with all their slots, from which a later attempt may choose."""
    excluded_hosts: tuple[str, ...]
    """Hosts that this attempt avoids."""
    ssh_command: tuple[str, ...]
    """How a host is reached: ssh with its options, without the host; empty if all ranks run on this host."""
    oversubscribed: bool
    """Whether ranks share a core."""
    may_oversubscribe: bool
    """The spec's consent to that."""
    binding: Literal["none", "core", "socket", "numa"]
    threads_per_rank: int
    gpus_per_rank: int | None


@dataclass(frozen=True)
class Launch:
    """By which program the ranks are started, and how."""

    backend: str
    """local, mpirun, horovodrun, slurm, or srun: inside an allocation that is there already."""
    reason: str
    """Why this backend, for people."""
    program: str
    """The mpirun or horovodrun that is called; '' for the other backends."""
    mpi_flavour: str
    mpi_version: tuple[int, ...]
    allow_root: bool
    """Whether the program must be told that root is meant."""
    network_args: tuple[str, ...]
    """Options of mpirun that the spec's ``network`` became; they stand before `extra_args`."""
    extra_args: tuple[str, ...]
    """The user's further options of mpirun."""
    python: str
    """The interpreter of the ranks' wrappers."""
    environment: dict[str, str]
    """Variables that the launcher sets for the program and the ranks."""
    scrubbed: tuple[str, ...]
    """Inherited variables that are removed."""


@dataclass(frozen=True)
class Limits:
    """When an attempt is ended, and when it counts as a success.  Durations are seconds."""

    time_limit: float | None
    """Time after which the attempt is ended."""
    hang_after: float | None
    """Time without progress after which it counts as hanging."""
    checkpoint_signal: str | None
    """Name, without SIG, of the signal that asks the training for a checkpoint."""
    before_limit: float
    """How long before the time limit that signal is sent."""
    require_finished: bool
    """Whether success needs the training's own mark."""


@dataclass(frozen=True)
class RestartRules:
    """How often the job is started again, by the cause of its end; see ``restart:`` in the spec, which holds the defaults."""

    failure: int | Literal["unlimited"]
    hang: int | Literal["unlimited"]
    lost_node: int | Literal["unlimited"]
    preemption: int | Literal["unlimited"]
    time_limit: int | Literal["unlimited"]
    backoff: float
    backoff_factor: float
    backoff_most: float
    jitter: float
    permanent_exit_codes: tuple[int, ...]
    exclude_node_for: float
    fast_failure: float
    no_progress: int | Literal["unlimited"]
    min_ranks: int | None


@dataclass(frozen=True)
class Slurm:
    """What SLURM is asked for; see ``slurm:`` in the spec, which holds the defaults."""

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    nodes: int | None
    ranks_per_node: int | None
    gpus_per_node: int | None
    memory: int | None
    """Bytes a node."""
    mpi: str
    exclude: str | None
    clusters: str | None
    requeue: bool
    extra: tuple[str, ...]
    prologue: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All that is decided before anything starts.  Holds no secret: only their names."""

    version: int
    job: Job
    placement: Placement
    launch: Launch
    limits: Limits
    restart: RestartRules
    slurm: Slurm | None
    """None unless the job goes to SLURM."""
    argv: tuple[str, ...]
    """What the launcher executes; it never holds the user's command."""
    files: tuple[str, ...]
    """What is written before the start."""

    def for_job(self, **changes: Any) -> Plan:
        """Change fields of `Job` from which nothing else follows: ``group``, ``priority``."""
        return replace(self, job=replace(self.job, **changes))

    def without_hosts(self, excluded: Sequence[str]) -> Plan:
        """Let the attempt avoid these hosts, if SLURM is to choose them: nothing else follows from it then."""
        return replace(self, placement=replace(self.placement, excluded_hosts=tuple(excluded)))

    def to_json(self) -> str:
        """Write the plan as one JSON document, ASCII only; text that stands for raw bytes survives as escapes."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def write(self, path: Path, *, durable: bool = False) -> None:
        """Write the plan, in one step.  Raises OSError.

        Args:
            path: a ``plan.json``.
            durable: whether it must survive a power failure.
        """
        replace_text(path, self.to_json(), durable=durable)

    def place(self, job: JobPaths) -> AttemptPaths:
        """Write the plan as that of its attempt, and as the job's newest if ``plan.json`` does not hold it already.

        Raises:
            OSError: if the job directory cannot be written.
        """
        attempt = job.attempt(self.job.attempt)
        attempt.create()
        self.write(attempt.plan, durable=True)
        if not self._is_in(job.plan):
            self.write(job.plan, durable=True)
        return attempt

    def _is_in(self, path: Path) -> bool:
        try:
            return _regular_file(path) == self.to_json()
        except (OSError, ValueError, PlanFileError):
            return False

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Rebuild the plan that `to_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: if the text is none.
        """
        data: dict[str, Any] = json.loads(text)
        if data["version"] != PLAN_VERSION:
            raise ValueError(f"its format is number {data['version']}, not {PLAN_VERSION}")
        placement = data["placement"]
        for name in ("hosts", "offered_hosts"):
            placement[name] = [HostSlots(**host) for host in placement[name]]
        parts = {
            "job": _part(Job, data["job"]),
            "placement": _part(Placement, placement),
            "launch": _part(Launch, data["launch"]),
            "limits": _part(Limits, data["limits"]),
            "restart": _part(RestartRules, data["restart"]),
            "slurm": None if data["slurm"] is None else _part(Slurm, data["slurm"]),
        }
        return _part(cls, {**data, **parts})

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read the plan in a file; links are not followed.

        Raises:
            PlanFileError: if there is none, or it was written by an earlier version.
        """
        try:
            text = _regular_file(path)
            if _is_flat(text):
                root = path.parents[2] if path.parents[1].name == "attempts" else path.parent
                raise PlanFileError(
                    f"the plan was written by an earlier version of hvdgrab-launch: submit {root / 'spec.yaml'} as a new job"
                )
            return cls.from_json(text)
        except OSError as error:
            reason = "it is a link, and links are not followed" if path.is_symlink() else error.strerror
            raise PlanFileError(f"the plan {path} cannot be read: {reason}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PlanFileError(f"{path} is not a plan of this version of hvdgrab-launch: {error}") from error

    @classmethod
    def of(cls, attempt: AttemptPaths) -> Plan:
        """Read the attempt's own plan, or the job's, which may be another attempt's, if it has none.

        Raises:
            PlanFileError: as `read`.
        """
        return cls.read(attempt.plan if attempt.plan.exists() else attempt.job.plan)


def _part(kind: type[T], data: dict[str, Any]) -> T:
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in data.items()})


def _regular_file(path: Path) -> str:
    """Read a regular file of sane size; refuse others without waiting on them."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode) or found.st_size > PLAN_MOST:
            raise PlanFileError(f"{path} is not a plan")
        return file.read().decode("ascii")


def _is_flat(text: str) -> bool:
    """Tell whether this is a plan of version 2 or before: one level, without the parts."""
    data = json.loads(text)
    return "job_id" in data and "job" not in data

"""A frozen plan: what ``--dry-run`` prints and a backend starts.  `launcher.plan.planning` makes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

PLAN_VERSION = 2


@dataclass(frozen=True)
class HostSlots:
    """A host, and how many ranks run there."""

    name: str
    slots: int


@dataclass(frozen=True)
class Plan:
    """All that is decided before anything starts.  Holds no secret: only their names."""

    version: int
    job_id: str
    job_dir: str
    name: str
    attempt: int
    """Which start of the job this is, from 1."""
    spec_sha256: str
    """Digest of the resolved spec, as it is frozen into the job directory."""
    group: str | None
    priority: int
    depends_on: tuple[str, ...]
    """Names or ids of jobs that must have succeeded before."""
    host: str
    backend: str
    """local, mpirun, horovodrun, slurm, or srun: inside an allocation that is there already."""
    backend_reason: str
    """Why this one, for people."""
    launcher_path: str
    """The mpirun or horovodrun that is called; '' for local."""
    mpi_flavour: str
    mpi_version: tuple[int, ...]
    ranks: int
    """Processes that are started: those that train, and a server rank behind them where there is one."""
    wanted_ranks: int
    """Ranks that train as the spec has it; fewer start only where hosts are missing and ``restart.min_ranks`` allows it."""
    server_ranks: int
    """1 where the last rank runs `server_command` instead of `command`."""
    hosts: tuple[HostSlots, ...]
    """Where the ranks run, in the order of the ranks, with as many slots as ranks; empty: on this host."""
    offered_hosts: tuple[HostSlots, ...]
    """All hosts of the spec with all their slots, from which a later attempt may choose."""
    excluded_hosts: tuple[str, ...]
    """Hosts that this attempt avoids."""
    ssh_command: tuple[str, ...]
    """How a host is reached: ssh with its options, without the host; empty where all ranks run on this host."""
    cores: int
    oversubscribed: bool
    """Whether ranks share a core."""
    may_oversubscribe: bool
    """The spec's consent to that."""
    allow_root: bool
    """Whether the backend must be told that root is meant."""
    binding: str
    threads_per_rank: int
    gpus_per_rank: int | None
    time_limit: float | None
    """Seconds after which the attempt is ended."""
    hang_after: float | None
    """Seconds without progress after which it counts as hanging."""
    checkpoint_signal: str | None
    """Name, without SIG, of the signal that asks the training for a checkpoint."""
    before_limit: float
    """Seconds before the time limit at which that signal is sent."""
    require_finished: bool
    """Whether success needs the training's own mark."""
    restart: dict[str, Any]
    """`launcher.spec.sections.RestartSettings` as plain data."""
    slurm: dict[str, Any] | None
    """`launcher.spec.sections.SlurmSettings` as plain data; None where the job does not go to SLURM."""
    extra_args: tuple[str, ...]
    """The user's further options of mpirun."""
    network_args: tuple[str, ...]
    """Options of mpirun that the spec's ``network`` became; they stand before `extra_args`."""
    python: str
    argv: tuple[str, ...]
    """What the launcher executes; it never holds the user's command."""
    command: tuple[str, ...]
    """What every rank that trains runs."""
    server_command: tuple[str, ...]
    """What the server rank runs; empty where there is none."""
    workdir: str
    environment: dict[str, str]
    """Variables that the launcher sets for the backend and the ranks."""
    rank_environment: dict[str, str]
    """The spec's ``env``, which the wrapper around each rank applies on top."""
    scrubbed: tuple[str, ...]
    """Inherited variables that are removed."""
    secrets: tuple[str, ...]
    """Names of inherited variables whose values are hidden in the logs."""
    files: tuple[str, ...]
    """What is written before the start."""

    @property
    def training_ranks(self) -> int:
        """Ranks that train."""
        return self.ranks - self.server_ranks

    def to_json(self) -> str:
        """The plan as one JSON document, ASCII only; text that stands for raw bytes survives as escapes."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: where the text is none.
        """
        data: dict[str, Any] = json.loads(text)
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        for name in ("hosts", "offered_hosts"):
            fields[name] = tuple(HostSlots(**host) for host in fields.get(name, ()))
        return cls(**fields)

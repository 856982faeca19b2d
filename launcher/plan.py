"""A frozen plan: what ``--dry-run`` prints and a backend starts.  `launcher.planning` makes it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

PLAN_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """All that is decided before anything starts.  Holds no secret: only their names."""

    version: int
    job_id: str
    job_dir: str
    name: str
    host: str
    backend: str
    """local, mpirun or horovodrun."""
    backend_reason: str
    """Why this one, for people."""
    launcher_path: str
    """The mpirun or horovodrun that is called; '' for local."""
    mpi_flavour: str
    mpi_version: tuple[int, ...]
    ranks: int
    cores: int
    oversubscribed: bool
    allow_root: bool
    """Whether the backend must be told that root is meant."""
    binding: str
    threads_per_rank: int
    extra_args: tuple[str, ...]
    python: str
    argv: tuple[str, ...]
    """What the launcher executes; it never holds the user's command."""
    command: tuple[str, ...]
    """What every rank runs."""
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

    def to_json(self) -> str:
        """The plan as one JSON document, ASCII only; text that stands for raw bytes survives as escapes."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return cls(**fields)

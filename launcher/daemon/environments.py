"""Submitters' environments, secrets included: files in the runtime directory for this user alone, until the job's end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


class Environments:
    """One file a job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, job_id: str, environment: Mapping[str, str]) -> None:
        """Keep a job's environment.  Raises OSError where it cannot be written."""
        path = self._path(job_id)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(number, "w", encoding="ascii") as file:
                json.dump(dict(environment), file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def load(self, job_id: str) -> dict[str, str] | None:
        """A job's environment; None where it was lost, as after the host was started again."""
        try:
            number = os.open(self._path(job_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(number, encoding="ascii") as file:
                data = json.load(file)
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def forget(self, job_id: str) -> None:
        """Remove a job's environment."""
        self._path(job_id).unlink(missing_ok=True)

    def kept(self) -> list[str]:
        """Ids of all jobs whose environment is here."""
        return [path.stem for path in self._directory.glob("[!.]*.json")]

    def forget_unfinished(self) -> None:
        """Remove what a daemon that was killed had begun to write; only where no other daemon lives."""
        for path in self._directory.glob(".*"):
            path.unlink(missing_ok=True)

    def _path(self, job_id: str) -> Path:
        return self._directory / f"{job_id}.json"

"""A job as the record holds it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from launcher.daemon.http.messages import JobView

LISTS = ("depends_on", "gpu_ids", "excluded")
"""Columns that hold a JSON list."""


@dataclass(frozen=True)
class Job:
    """One row; times are Unix times in seconds."""

    id: str
    dir: str
    name: str
    state: str
    submitted: float
    ranks: int
    backend: str
    starter: str
    """Which `launcher.attempt.starter.Starter` runs it: local or slurm."""
    priority: int = 0
    depends_on: tuple[str, ...] = ()
    """Ids."""
    group_name: str | None = None
    cpus: int = 0
    """Slots of this host that it takes while an attempt is under way."""
    gpus: int = 0
    gpu_ids: tuple[str, ...] = ()
    """Those that it has at present."""
    exit_code: int | None = None
    reason: str | None = None
    started: float | None = None
    finished: float | None = None
    attempt: int = 0
    """Number of the present or last attempt."""
    attempts: int = 0
    """Attempts that have ended."""
    first_attempt: int = 1
    """The attempt from which the restart budgets count: after a retry by hand they are whole again."""
    handle: Mapping[str, Any] | None = None
    """The supervisor; None while a start has not been confirmed."""
    next_try: float | None = None
    delay: float | None = None
    """Seconds of the back-off that ends at `next_try`."""
    excluded: tuple[str, ...] = ()
    """Hosts to do without in the next attempt."""
    cancel: bool = False
    """Whether its end was asked for."""
    closed: bool = False
    """Whether all that follows the end has been done."""
    seq: int = 0
    """Order of submission."""

    @classmethod
    def from_row(cls, row: sqlite3.Row) -> Job:
        """The job in a row."""
        values = dict(row)
        for name in LISTS:
            values[name] = tuple(json.loads(values[name])) if values[name] != "[]" else ()
        values["handle"] = json.loads(values["handle"]) if values["handle"] else None
        values["cancel"], values["closed"] = bool(values["cancel"]), bool(values["closed"])
        return cls(**values)

    def view(self, owner: str, reason: str | None = None) -> JobView:
        """As clients see it.

        Args:
            owner: the host whose daemon looks after it.
            reason: what it waits for, where the row says nothing.
        """
        return JobView(
            id=self.id,
            name=self.name,
            state=self.state,
            exit_code=self.exit_code,
            dir=self.dir,
            reason=self.reason or reason,
            submitted=self.submitted,
            started=self.started,
            finished=self.finished,
            seconds=None if self.finished is None else max(0.0, self.finished - self.submitted),
            ranks=self.ranks,
            backend=self.backend,
            attempt=self.attempt,
            attempts=self.attempts,
            group=self.group_name,
            priority=self.priority,
            owner=owner,
            next_try=self.next_try,
            depends_on=self.depends_on,
        )


COLUMNS = tuple(entry.name for entry in fields(Job))


def to_columns(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values as SQLite takes them."""
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name in LISTS:
            values[name] = json.dumps(list(value))
        elif name == "handle":
            values[name] = None if value is None else json.dumps(dict(value))
        else:
            values[name] = int(value) if isinstance(value, bool) else value
    return values

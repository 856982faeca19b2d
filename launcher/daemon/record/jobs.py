"""The record in use: every change is one durable transaction, made only while this daemon holds the lease."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.daemon.record import lease
from launcher.daemon.record.database import explained, open_read_only, open_record
from launcher.daemon.record.rows import COLUMNS, Job, to_columns
from launcher.host.filesystem import is_network
from launcher.jobdir.words import FINAL


class Store:
    """The record, for one daemon.  Safe to use from several threads."""

    def __init__(self, connection: sqlite3.Connection, path: Path, holder: lease.Holder | None) -> None:
        self._connection = connection
        self._path = path
        self._holder = holder
        self._lock = threading.RLock()
        self.changes = 0
        """How many transactions were made: while it stands, nothing has changed."""

    @classmethod
    def open(
        cls,
        path: Path,
        holder: lease.Holder | None = None,
        *,
        network: bool | None = None,
        steady: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Store:
        """Open the record and take its lease.

        Args:
            path: the SQLite file; its directory exists.
            holder: this daemon.
            network: whether other hosts can reach the file too; by default as the kernel says.
            steady: a clock in seconds that never goes back.
            sleep: waits some seconds.

        Raises:
            RecordError: where it cannot be used.
            LeaseHeldError: where another daemon owns it.
        """
        shared = is_network(path.parent) if network is None else network
        me = holder or lease.Holder()
        connection = open_record(path, network=shared)
        try:
            with explained(path):
                lease.acquire(connection, me, shared=shared, steady=steady, sleep=sleep)
        except BaseException:
            connection.close()
            raise
        return cls(connection, path, me)

    @classmethod
    def open_read_only(cls, path: Path) -> Store:
        """The record for reading alone, without its lease.

        Raises:
            RecordError: where it cannot be read.
            FileNotFoundError: where there is none.
        """
        return cls(open_read_only(path), path, None)

    def close(self, *, release: bool = True) -> None:
        """Give the lease back and close the file."""
        with self._lock:
            if release and self._holder is not None:
                with explained(self._path):
                    lease.release(self._connection, self._holder)
            self._connection.close()

    @property
    def holder(self) -> lease.Holder | None:
        """Who holds the lease at present."""
        with self._lock, explained(self._path):
            return lease.read(self._connection)

    def renew(self) -> None:
        """Show that this daemon lives.  Raises LeaseLostError where another has taken the record over."""
        assert self._holder is not None
        with self._lock, explained(self._path):
            lease.renew(self._connection, self._holder)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Several changes that hold together or not at all; on the disk when the block has ended.

        Raises:
            RecordError: where they cannot be written; nothing has changed then.
            LeaseLostError: where another daemon has taken the record over.
        """
        assert self._holder is not None, "a record that was opened for reading is not written"
        with self._lock, explained(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                lease.check(self._connection, self._holder)
                yield Transaction(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self.changes += 1

    def get(self, job_id: str) -> Job | None:
        """One job; None where there is none."""
        return self._one("SELECT * FROM jobs WHERE id = ?", (job_id,))

    def find(
        self,
        states: Sequence[str] = (),
        *,
        name: str | None = None,
        group: str | None = None,
        closed: bool | None = None,
        beginning: str = "",
        limit: int | None = None,
    ) -> list[Job]:
        """Jobs by order of submission.

        Args:
            states: in which they are; any by default.
            name: which all of them have.
            group: which all of them belong to.
            closed: whether all that follows their end has been done.
            beginning: of their id or group.
            limit: how many of the newest are returned at most.
        """
        conditions: list[str] = []
        values: list[Any] = [*states]
        if states:
            conditions.append(f"state IN ({', '.join('?' * len(states))})")
        for column, value in (("name", name), ("group_name", group), ("closed", closed)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(value)
        if beginning:
            conditions.append("(substr(id, 1, ?) = ? OR substr(group_name, 1, ?) = ?)")
            values += [len(beginning), beginning] * 2
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        rows = self._all(f"SELECT * FROM jobs{where} ORDER BY seq DESC LIMIT ?", (*values, -1 if limit is None else limit))
        return [Job.from_row(row) for row in reversed(rows)]

    def states(self, ids: Sequence[str]) -> dict[str, str]:
        """The states of jobs by id; those that are not there are left out."""
        found: dict[str, str] = {}
        for start in range(0, len(ids), 500):  # SQLite limits the variables of one statement
            part = ids[start : start + 500]
            rows = self._all(f"SELECT id, state FROM jobs WHERE id IN ({', '.join('?' * len(part))})", part)
            found |= {row["id"]: row["state"] for row in rows}
        return found

    def counts(self) -> dict[str, int]:
        """Number of jobs by state."""
        return {row["state"]: row["n"] for row in self._all("SELECT state, count(*) AS n FROM jobs GROUP BY state", ())}

    def ends(self, job_id: str, first: int = 1) -> list[dict[str, Any]]:
        """How a job's attempts ended, from attempt ``first`` on, oldest first; each as in ``end.json``."""
        rows = self._all("SELECT finish FROM attempts WHERE job = ? AND attempt >= ? ORDER BY attempt", (job_id, first))
        return [json.loads(row["finish"]) for row in rows]

    def _one(self, statement: str, values: Sequence[Any]) -> Job | None:
        rows = self._all(statement, values)
        return Job.from_row(rows[0]) if rows else None

    def _all(self, statement: str, values: Sequence[Any]) -> list[sqlite3.Row]:
        with self._lock, explained(self._path):
            return self._connection.execute(statement, values).fetchall()


class Transaction:
    """Changes inside `Store.transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, job_id: str) -> Job | None:
        """One job as it is inside this transaction."""
        row = self._connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return Job.from_row(row) if row else None

    def add(self, job: Job) -> Job:
        """Add a job; where one of its id is there, that one is returned and nothing changes."""
        present = self.get(job.id)
        if present is not None:
            return present
        values = to_columns({name: getattr(job, name) for name in COLUMNS if name != "seq"})
        names = ", ".join(values)
        self._connection.execute(f"INSERT INTO jobs ({names}) VALUES ({', '.join(':' + name for name in values)})", values)
        added = self.get(job.id)
        assert added is not None
        return added

    def change(self, job_id: str, *, only_in: Sequence[str] = (), **changes: Any) -> Job | None:
        """Change a job that is not final; final states are final.

        Args:
            job_id: the job.
            only_in: states in which it must be for the change.
            changes: columns and their new values.

        Returns:
            The changed job; None where its state forbade the change.
        """
        return self._change(job_id, f"state NOT IN {FINAL!r}", only_in, changes)

    def reopen(self, job_id: str, *, only_in: Sequence[str], **changes: Any) -> Job | None:
        """As `change`, for a job that is final: only a person's own wish does this."""
        return self._change(job_id, "closed = 1", only_in, changes)

    def close(self, job_id: str) -> None:
        """Note that all that follows a job's end has been done."""
        self._connection.execute("UPDATE jobs SET closed = 1 WHERE id = ?", (job_id,))

    def _change(self, job_id: str, condition: str, only_in: Sequence[str], changes: Mapping[str, Any]) -> Job | None:
        values = to_columns(changes)
        if only_in:
            condition += f" AND state IN ({', '.join(repr(state) for state in only_in)})"
        settings = ", ".join(f"{name} = :{name}" for name in values)
        cursor = self._connection.execute(
            f"UPDATE jobs SET {settings} WHERE id = :_id AND {condition}", {**values, "_id": job_id}
        )
        return self.get(job_id) if cursor.rowcount else None

    def add_end(self, job_id: str, attempt: int, end: Mapping[str, Any]) -> None:
        """Note how an attempt ended; the first note counts."""
        self._connection.execute("INSERT OR IGNORE INTO attempts VALUES (?, ?, ?)", (job_id, attempt, json.dumps(dict(end))))

"""The record: which jobs there are and what became of them, in SQLite.

Every change is one durable transaction, made only while this daemon holds the lease.  On a file system of this host the record
uses a write-ahead log; on one that several hosts share that is unsafe, and it uses a rollback journal.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from launcher.daemon import lease
from launcher.daemon.http.messages import JobView
from launcher.errors import UnreachableError
from launcher.host.files import is_network, kind_of
from launcher.jobdir.words import FINAL

SCHEMA_VERSION = 1
APPLICATION_ID = 0x48474A42
"""Marks a SQLite file as a record of ours."""
BUSY_SECONDS = 5.0
"""How long a locked record is waited for."""

SCHEMA = """
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, dir TEXT NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL, exit_code INTEGER, reason TEXT, submitted REAL NOT NULL, started REAL, finished REAL,
    ranks INTEGER NOT NULL, backend TEXT NOT NULL, starter TEXT NOT NULL, group_name TEXT, priority INTEGER NOT NULL,
    depends_on TEXT NOT NULL, cpus INTEGER NOT NULL, gpus INTEGER NOT NULL, gpu_ids TEXT NOT NULL,
    attempt INTEGER NOT NULL, attempts INTEGER NOT NULL, first_attempt INTEGER NOT NULL, handle TEXT, next_try REAL,
    delay REAL, excluded TEXT NOT NULL, cancel INTEGER NOT NULL, closed INTEGER NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state, closed);
CREATE TABLE attempts (
    job TEXT NOT NULL, attempt INTEGER NOT NULL, finish TEXT NOT NULL, PRIMARY KEY (job, attempt)
) WITHOUT ROWID;
CREATE TABLE lease (
    id INTEGER PRIMARY KEY CHECK (id = 1), token TEXT NOT NULL, host TEXT NOT NULL, boot TEXT NOT NULL, processes TEXT NOT NULL,
    pid INTEGER NOT NULL, pid_started INTEGER, renewals INTEGER NOT NULL, seconds REAL NOT NULL, released INTEGER NOT NULL
);
"""


class RecordError(UnreachableError):
    """The record cannot be used now; the text names the file and the cause."""


def open_record(path: Path, *, network: bool | None = None) -> sqlite3.Connection:
    """Open the record for writing; make it if there is none.

    Args:
        path: the file; its directory exists.
        network: whether it is on a file system that several hosts share; by default as the kernel says.

    Raises:
        RecordError: if it cannot be used, is no record, or was made by a later version.
    """
    shared = is_network(path.parent) if network is None else network

    def prepare(connection: sqlite3.Connection) -> None:
        _check_version(connection, path)
        _set_modes(connection, path, shared)
        _make_schema(connection)

    return _connect(path, path.as_uri(), prepare)


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open the record for reading, while its daemon runs or not.

    Raises:
        RecordError: if it cannot be read.
        FileNotFoundError: if there is none.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except OSError as error:
        raise RecordError(f"the record {path} cannot be read: {error.strerror}") from error
    return _connect(path, f"{path.as_uri()}?mode=ro", lambda connection: _check_version(connection, path))


def _connect(path: Path, uri: str, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    with explained(path):
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            prepare(connection)
        except BaseException:
            connection.close()
            raise
    connection.row_factory = sqlite3.Row
    return connection


def _set_modes(connection: sqlite3.Connection, path: Path, shared: bool) -> None:
    wanted = "delete" if shared else "wal"
    (mode,) = connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()
    if mode != wanted and shared:
        raise RecordError(
            f"the record {path} is on a network file system ({kind_of(path)}), and its journal is of a kind ({mode}) that is "
            "unsafe there: stop whatever has it open, or set HVDGRAB_STATE to a directory of this host"
        )
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA journal_size_limit=4194304")


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if version == 0 and application == 0:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0:
            return
    if application != APPLICATION_ID:
        raise RecordError(f"{path} is a database, but no record of jobs; move it away")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"the record {path} has version {version}, and this hvdgrab-launch knows versions up to {SCHEMA_VERSION}: use the "
            "newer release that wrote it, or set HVDGRAB_STATE to another directory"
        )


def _make_schema(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a `RecordError` that names the cause."""
    try:
        yield
    except sqlite3.Error as error:
        raise RecordError(_meaning(path, str(error))) from error


def _meaning(path: Path, text: str) -> str:
    if "full" in text:
        return f"the record {path} cannot be written: the disk is full; free space in {path.parent}"
    if "locked" in text:
        return f"the record {path} is locked by another program, and was not released within {BUSY_SECONDS:.0f} s"
    if "readonly" in text or "unable to open" in text:
        return f"the record {path} cannot be opened for writing: check the rights of the file and of its directory"
    if "malformed" in text or "not a database" in text:
        return f"the record {path} is damaged ({text}): move it away; the job directories hold what happened to each job"
    if is_network(path):
        return f"the record {path} is on a file system ({kind_of(path)}) that refused ({text}): set HVDGRAB_STATE to a local one"
    return f"the record {path} cannot be used: {text}"


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
    """Those that it has now."""
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
            reason: what it waits for, if the row does not say it.
        """
        shared = {name: getattr(self, name) for name in JobView.__dataclass_fields__ if name in self.__dataclass_fields__}
        seconds = None if self.finished is None else max(0.0, self.finished - self.submitted)
        return JobView(**{**shared, "reason": self.reason or reason}, group=self.group_name, seconds=seconds, owner=owner)


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


class Store:
    """The record, for one daemon.  Safe to use from several threads."""

    def __init__(self, connection: sqlite3.Connection, path: Path, holder: lease.Holder | None) -> None:
        self._connection = connection
        self._path = path
        self._holder = holder
        self._lock = threading.RLock()
        self.changes = 0
        """Number of transactions so far: while it stays the same, nothing has changed."""

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
            RecordError: if it cannot be used.
            LeaseHeldError: if another daemon owns it.
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
            RecordError: if it cannot be read.
            FileNotFoundError: if there is none.
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
        """Who holds the lease now."""
        with self._lock, explained(self._path):
            return lease.read(self._connection)

    def renew(self) -> None:
        """Show that this daemon lives.  Raises LeaseLostError if another has taken the record over."""
        assert self._holder is not None
        with self._lock, explained(self._path):
            lease.renew(self._connection, self._holder)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A durable transaction.

        Raises:
            RecordError: if they cannot be written; nothing has changed then.
            LeaseLostError: if another daemon has taken the record over.
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
        """One job; None if there is none."""
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
        """Add a job; if one of its id is there, return that and change nothing."""
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
            The changed job; None if its state forbade the change.
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

"""Opening the record, and what SQLite's errors mean for a person.

On a file system of this host the record uses a write-ahead log; on one that several hosts share that is unsafe, and it uses a
rollback journal.  Every commit is on the disk before it returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.errors import UnreachableError
from launcher.host.filesystem import is_network, kind_of

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
    """Open the record for writing, and make it where there is none.

    Args:
        path: the file; its directory exists.
        network: whether it is on a file system that several hosts share; by default as the kernel says.

    Raises:
        RecordError: where it cannot be used, is no record, or was made by a later version.
    """
    shared = is_network(path.parent) if network is None else network
    with explained(path):
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _check_version(connection, path)
            _set_modes(connection, path, shared)
            _make_schema(connection)
        except BaseException:
            connection.close()
            raise
    connection.row_factory = sqlite3.Row
    return connection


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open the record for reading, while its daemon runs or not.

    Raises:
        RecordError: where it cannot be read.
        FileNotFoundError: where there is none.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except OSError as error:
        raise RecordError(f"the record {path} cannot be read: {error.strerror}") from error
    with explained(path):
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            _check_version(connection, path)
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

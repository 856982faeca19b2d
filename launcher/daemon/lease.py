"""Which daemon may write the record: a row that its owner renews.

Hosts' clocks are never compared.  A daemon that wants the lease of another watches, by its own steady clock, whether it is
renewed; it is taken over only after its own stated lifetime has passed without a renewal.  On one host, a dead owner is known at
once by its process.
"""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from launcher.errors import UnreachableError
from launcher.host.processes import alive, own_identity, process_table

LEASE_SECONDS = 60.0
RENEW_SECONDS = 5.0


class LeaseHeldError(UnreachableError):
    """Another daemon owns the record."""

    def __init__(self, text: str, pid: int | None = None) -> None:
        super().__init__(text)
        self.pid = pid
        """Its process id, if it lives on this host."""


class LeaseLostError(UnreachableError):
    """Another daemon has taken the record over: this one must stop at once."""


@dataclass(frozen=True)
class Holder:
    """A daemon that holds the lease, or wants it."""

    token: str = field(default_factory=lambda: secrets.token_hex(8))
    host: str = field(default_factory=socket.gethostname)
    boot: str = field(default_factory=lambda: _read("/proc/sys/kernel/random/boot_id"))
    processes: str = field(default_factory=process_table)
    """The process table in which `pid` counts: containers have their own."""
    pid: int = field(default_factory=os.getpid)
    pid_started: int | None = field(default_factory=lambda: own_identity()["pid_started"])
    renewals: int = 0
    seconds: float = LEASE_SECONDS
    released: bool = False

    def certainly_gone(self, me: Holder, shared: bool) -> bool:
        """Whether this owner cannot act any more.

        Args:
            me: who asks.
            shared: whether other hosts can reach the record too.
        """
        if self.released:
            return True
        if self.boot != me.boot:
            return not shared  # a disk of one host, which was started again since
        return self.processes == me.processes and not alive(self.pid, self.pid_started)


def read(connection: sqlite3.Connection) -> Holder | None:
    """The present holder; None before the first."""
    row = connection.execute("SELECT * FROM lease WHERE id = 1").fetchone()
    if row is None:
        return None
    values = {name: row[name] for name in Holder.__dataclass_fields__}
    return Holder(**{**values, "released": bool(values["released"])})


def acquire(
    connection: sqlite3.Connection, me: Holder, *, shared: bool, steady: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    """Take the lease; if another daemon holds it, only after it has run out.

    Args:
        connection: the record, outside of a transaction.
        me: who takes it.
        shared: whether other hosts can reach the record too.
        steady: a clock in seconds that never goes back.
        sleep: waits some seconds.

    Raises:
        LeaseHeldError: if its holder lives; the text names the host.
    """
    seen = read(connection)
    if seen is not None and not seen.certainly_gone(me, shared):
        _watch(connection, seen, me, steady, sleep)
    values = {**asdict(me), "released": 0, "id": 1}
    connection.execute("BEGIN IMMEDIATE")
    try:
        if read(connection) != seen:
            raise LeaseHeldError("another daemon was quicker to take the record over")
        names = ", ".join(values)
        connection.execute(f"REPLACE INTO lease ({names}) VALUES ({', '.join(':' + name for name in values)})", values)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _watch(
    connection: sqlite3.Connection, seen: Holder, me: Holder, steady: Callable[[], float], sleep: Callable[[float], None]
) -> None:
    if seen.boot == me.boot and seen.processes == me.processes:
        raise LeaseHeldError(
            f"the record is owned by the daemon with process id {seen.pid} on this host, which has another runtime directory: "
            "set HVDGRAB_RUNTIME or XDG_RUNTIME_DIR as it was when that one was started, or end it with "
            f"`kill {seen.pid}`; jobs go on",
            seen.pid,
        )
    end = steady() + seen.seconds
    while steady() < end:
        sleep(min(1.0, seen.seconds / 10))
        if read(connection) != seen:
            raise LeaseHeldError(
                f"the record is owned by the daemon on host {seen.host}, which lives: give commands there, or stop it there with "
                "`hvdgrab-launch daemon stop`, or set HVDGRAB_STATE to a directory of this host"
            )


def renew(connection: sqlite3.Connection, me: Holder) -> None:
    """Show that the holder lives.

    Raises:
        LeaseLostError: if another has taken it over.
    """
    connection.execute("UPDATE lease SET renewals = renewals + 1 WHERE token = ?", (me.token,))
    check(connection, me)


def check(connection: sqlite3.Connection, me: Holder) -> None:
    """Raises LeaseLostError unless the lease is this holder's; inside a transaction that holds until its end."""
    found = read(connection)
    if found is None or found.token != me.token:
        host = "nobody" if found is None else f"the daemon on host {found.host}"
        raise LeaseLostError(f"the record was taken over by {host}: this daemon stops")


def release(connection: sqlite3.Connection, me: Holder) -> None:
    """Give the lease back, so that the next daemon need not wait."""
    connection.execute("UPDATE lease SET released = 1 WHERE token = ?", (me.token,))


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return ""

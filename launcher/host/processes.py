"""Processes of this host: which one is meant, who descends from whom, who carries a mark, and how to end one and no other.

A process id alone is given away again after its process has ended, so the start of the process is compared too.

Linux, standard library only.  A process may leave its session and its group, ignore TERM, and drop its environment; it cannot
leave the tree of its nearest subreaper (see ``PR_SET_CHILD_SUBREAPER`` in prctl(2)): orphans become that process's children.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Entry:
    """A line of the process table."""

    pid: int
    parent: int
    started: int
    """Clock ticks since boot."""
    state: str
    """R, S, D, T, Z …"""


def become_subreaper() -> None:
    """From now on every orphan among this process's descendants becomes its child, and can be found."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Have the system send this process a signal when the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def table() -> dict[int, Entry]:
    """All processes of this host by id."""
    found: dict[int, Entry] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
        if name.isdigit() and (entry := read_process(int(name))) is not None:
            found[entry.pid] = entry
    return found


def read_process(pid: int) -> Entry | None:
    """One process; None if it has ended."""
    data = _read(f"/proc/{pid}/stat")
    fields = data.rpartition(b")")[2].split()  # the program's name before it may hold anything
    return Entry(pid, int(fields[1]), int(fields[19]), fields[0].decode()) if len(fields) > 19 else None


def own_identity() -> dict[str, Any]:
    """Host, process id and start of this process, by which a later reader tells whether it still lives."""
    return {"host": os.uname().nodename, "pid": os.getpid(), "pid_started": start_ticks(os.getpid())}


def process_table() -> str:
    """Name of the process table in which this process's ids count: each container has its own, also under one host name."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path, but a name
    except OSError:
        return ""


def node_name() -> str:
    """This host as marks name it: as the scheduler that started this process does, else as the host itself does."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which together with its id names it for good; None if it has ended."""
    found = read_process(pid)
    return None if found is None or found.state in "ZX" else found.started


def alive(pid: Any, started: Any) -> bool:
    """Whether the process of this id and start lives on this host; a zombie does not."""
    return isinstance(pid, int) and started is not None and start_ticks(pid) == started


def descendants(root: int, known: dict[int, Entry] | None = None) -> list[Entry]:
    """The living processes below one, those of zombies included, zombies themselves not."""
    processes = table() if known is None else known
    children: dict[int, list[Entry]] = {}
    for entry in processes.values():
        children.setdefault(entry.parent, []).append(entry)
    found, open_ = [], [root]
    while open_:
        below = children.get(open_.pop(), [])
        open_ += [entry.pid for entry in below]
        found += [entry for entry in below if entry.state not in "ZX"]
    return found


def marked(variables: Iterable[bytes], known: dict[int, Entry] | None = None) -> list[Entry]:
    """The living processes, this one left out, whose environment holds all of these ``NAME=value``; other users' are hidden."""
    processes = table() if known is None else known
    wanted = list(variables)
    own = os.getpid()
    return [
        entry
        for entry in processes.values()
        if entry.pid != own and entry.state not in "ZX" and _carries(entry.pid, wanted)
    ]


def files_open_for_writing(names: Collection[str]) -> set[int]:
    """Inodes of files that a process of this user, this one included, holds open for writing.

    Args:
        names: the last parts of the paths of interest.
    """
    found = set()
    for descriptors in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # the process has gone, or is another user's
            for link in list(os.scandir(descriptors)):
                with suppress(OSError):
                    if Path(link.path).readlink().name in names and _is_written(descriptors.parent, link.name):
                        found.add(link.stat().st_ino)
    return found


def _is_written(process: Path, descriptor: str) -> bool:
    fields = _read(str(process / "fdinfo" / descriptor)).split()
    return int(fields[fields.index(b"flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY if b"flags:" in fields else False


def _carries(pid: int, wanted: list[bytes]) -> bool:
    data = _read(f"/proc/{pid}/environ")
    if not all(text in data for text in wanted):
        return False
    present = set(data.split(b"\0"))
    return all(text in present for text in wanted)


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(file)


def send(entries: Iterable[Entry], number: int) -> None:
    """Signal processes, each only if it is still the one that was seen: ids are given away again."""
    for entry in entries:
        with suppress(OSError):
            _send(entry, number)


def _send(entry: Entry, number: int) -> None:
    handle = os.pidfd_open(entry.pid)
    try:
        now = read_process(entry.pid)
        if now is not None and now.started == entry.started:
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def kill_descendants(seconds: float = 10.0) -> None:
    """Kill every process below this one, and collect it, for at most so many seconds: KILL ends some only later."""
    last = time.monotonic() + seconds
    while (found := descendants(os.getpid())) and time.monotonic() < last:
        send(found, signal.SIGKILL)
        time.sleep(0.01)
        reap()


def group(pid: int) -> int | None:
    """Its process group; None if it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def catchers(root: int, number: int) -> list[Entry]:
    """The processes from ``root`` downwards that have a handler for a signal, without those below such a process."""
    known = table()
    found: list[Entry] = []
    open_ = [root]
    while open_:
        pid = open_.pop()
        if pid in known and _catches(pid, number):
            found.append(known[pid])
        else:
            open_ += [entry.pid for entry in known.values() if entry.parent == pid]
    return found


def _catches(pid: int, number: int) -> bool:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def reap_others(kept: int) -> None:
    """Collect adopted children that have ended, up to ``kept``, whose owner asks for its status."""
    with suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == kept:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


def reap() -> dict[int, int]:
    """Collect children that have ended, adopted ones too: id to status as of waitpid(2).  Does not wait."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = status
    return ended

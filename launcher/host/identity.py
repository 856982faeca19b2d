"""Which process is meant: a process id alone is given away again after the process has ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def own_identity() -> dict[str, Any]:
    """Host, process id and that process's start, by which a later reader tells whether this process still lives."""
    return {"host": os.uname().nodename, "pid": os.getpid(), "pid_started": start_ticks(os.getpid())}


def process_table() -> str:
    """The process table in which this process's ids count: containers have their own, also under one host name."""
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path, but a name
    except OSError:
        return ""


def node_name() -> str:
    """This host as its scheduler names it, where one has started this process, else as it names itself: what marks hold."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def alive(pid: Any, started: Any) -> bool:
    """Whether the process of this id and start lives on this host; a zombie does not."""
    return isinstance(pid, int) and started is not None and start_ticks(pid) == started


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which together with its id names it for good; None where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the program's name before it may hold anything
    return None if fields[0] in ("Z", "X") else int(fields[19])

"""Starting, stopping and asking for the daemon from outside."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import launcher
from launcher.daemon.dirs import Dirs
from launcher.errors import UnreachableError
from launcher.jobdir import variables

START_SECONDS = 90.0
"""Seconds for a start: a daemon that takes over from another host waits out its lease first."""
STOP_SECONDS = 30.0
_KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "SLURM_CONF",
)
_KEPT_PREFIXES = (variables.PREFIX, "XDG_", "PYTHON", "LC_")


def start(dirs: Dirs, seconds: float = START_SECONDS) -> int:
    """Start a daemon in the background; returns its process id when it answers.

    If another start was quicker, its daemon is used.

    Raises:
        UnreachableError: if it did not come up; the text is what it said.
    """
    dirs.make()
    read, write = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-m", "launcher.daemon", "--ready-fd", str(write)],
            cwd="/", env=daemon_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, pass_fds=(write,), check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    try:
        pid = read_startup_messages(read, seconds)
    finally:
        os.close(read)
    if pid is None or not listens(dirs, seconds):
        raise UnreachableError(f"the daemon did not come up; its log: {dirs.log}")
    return pid


def listens(dirs: Dirs, seconds: float) -> bool:
    """Wait until a daemon listens; returns whether one does."""
    end = time.monotonic() + seconds
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(dirs.socket))
                return True
            except OSError:
                if time.monotonic() > end:
                    return False
        time.sleep(0.05)


def daemon_environment() -> dict[str, str]:
    """The environment of a new daemon: what it needs of the present one, without secrets and an outer job's variables."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    for name in (variables.JOB_ID, variables.JOB_DIR, variables.ATTEMPT, variables.GRAB):
        kept.pop(name, None)
    root = str(Path(launcher.__file__).resolve().parent.parent)
    others = [part for part in kept.get("PYTHONPATH", "").split(":") if part and part != root]
    return {**kept, "PYTHONPATH": ":".join([root, *others]), "PYTHONSAFEPATH": "1"}


class StartupMessages:
    """Messages of a starting daemon to the process that started it and waits: a JSON object of one entry a line."""

    def __init__(self, ready_fd: int | None) -> None:
        self._ready_fd = ready_fd
        self.background = ready_fd is not None
        """Whether nobody reads its stderr."""

    def ready(self, pid: int) -> None:
        """A daemon, of this process id, is ready: the last message."""
        self._write_last({"ready": pid})

    def waits(self, text: str) -> None:
        """What holds the start up."""
        self._write({"waits": text})

    def failed(self, text: str) -> None:
        """Why this daemon ends: the last message."""
        if not self.background:
            print(f"hvdgrab-launch: {text}", file=sys.stderr)
        self._write_last({"failed": text})

    def _write(self, message: Mapping[str, Any]) -> None:
        if self._ready_fd is not None:
            with contextlib.suppress(OSError):  # who started it has gone
                os.write(self._ready_fd, json.dumps(message).encode("ascii") + b"\n")

    def _write_last(self, message: Mapping[str, Any]) -> None:
        """Write and close: the number of the descriptor may stand for another file afterwards."""
        self._write(message)
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None


def read_startup_messages(read: int, seconds: float) -> int | None:
    """The process id of a daemon that has come up; None if it said nothing in time.  Prints what holds it up meanwhile.

    Args:
        read: the other end of the descriptor that `StartupMessages` writes to.
        seconds: how long to wait for the last message.

    Raises:
        UnreachableError: if it has failed; the text is what it said.
    """
    said = b""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            continue
        part = os.read(read, 4096)
        if not part:
            break
        *lines, said = (said + part).split(b"\n")
        for line in lines:
            match json.loads(line):
                case {"ready": int(pid)}:
                    return pid
                case {"failed": str(text)}:
                    raise UnreachableError(text)
                case {"waits": str(text)}:
                    print(f"hvdgrab-launch: {text}", file=sys.stderr, flush=True)
    return None


def stop(dirs: Dirs, seconds: float = STOP_SECONDS) -> bool:
    """End the daemon of this user on this host, and wait until it has gone; returns whether there was one.  Jobs go on running.

    Raises:
        UnreachableError: if it does not answer, or does not end.
    """
    from launcher.daemon.http.client import Client, NotRunningError
    from launcher.host.processes import alive, start_ticks

    try:
        client = Client.connect(start=False, dirs=dirs)
        pid = client.status().pid
        started = start_ticks(pid)
        client.stop()
    except NotRunningError:
        return False
    end = time.monotonic() + seconds
    while alive(pid, started):
        if time.monotonic() > end:
            raise UnreachableError(
                f"the daemon with process id {pid} was asked to end, but lives after {seconds:.0f} s: `kill -9 {pid}` ends it, "
                "and jobs go on"
            )
        time.sleep(0.05)
    return True


def run(dirs: Dirs) -> int:
    """Be the daemon, in the foreground; returns the exit code."""
    from launcher.daemon.main import run as run_daemon

    return run_daemon(dirs, None)

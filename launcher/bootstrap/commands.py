"""Runs the set-up's commands: full output to a log file, a line of progress to the user, nothing left running on Ctrl-C.

A command writes straight into its log file and not into a pipe of ours: if the set-up is killed, it can still finish.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from launcher.bootstrap.errors import BootstrapError, failure

_PERCENT = re.compile(rb"^\s*\[\s*(\d{1,3})%\]", re.MULTILINE)
_SCRUBBED = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX", "CMAKE_GENERATOR")
"""Left by an outer make or by the user's shell, they would change what the commands do."""


def clean_environment(environ: Mapping[str, str], **extra: str) -> dict[str, str]:
    """`environ` without what would change the commands' meaning, with `extra` on top. pip never installs into the home."""
    kept = {name: value for name, value in environ.items() if name not in _SCRUBBED}
    return {**kept, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", **extra}


@dataclass
class Progress:
    """Tells how far a long command is, on one line that is rewritten on a terminal, and on a new line every 30 s elsewhere.

    Args:
        title: The line's beginning, as in "[4/7] building Horovod".
        stream: Where to print.
    """

    title: str
    stream: TextIO = field(default_factory=lambda: sys.stdout)
    every: float = 30.0
    _started: float = field(default_factory=time.monotonic)
    _said: float = 0.0

    def update(self, percent: int | None) -> None:
        """Say how far it is, unless that was said a moment ago."""
        now = time.monotonic()
        terminal = self.stream.isatty()
        if now - max(self._said, self._started) < (1.0 if terminal else self.every):
            return
        self._said = now
        elapsed = now - self._started
        known = f"{percent:3d} %, " if percent is not None else ""
        text = f"{self.title}: {known}{elapsed:.0f} s"
        self.stream.write(f"\r{text}\x1b[K" if terminal else f"{text}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Take the line off a terminal again."""
        if self.stream.isatty() and self._said > 0:
            self.stream.write("\r\x1b[K")
            self.stream.flush()


@dataclass
class Runner:
    """Runs commands with one environment; `stop` ends those that still run.

    Args:
        log_directory: Where logs go, one file a title.
        environ: The commands' environment.
        keep: File descriptors that the commands inherit (held locks).
    """

    log_directory: Path
    environ: Mapping[str, str]
    keep: tuple[int, ...] = ()
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set once `stop` was called: nothing is started any more."""

    def __call__(
        self,
        doing: str,
        argv: Sequence[str | Path],
        *,
        log: str,
        progress: Progress | None = None,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        keep: tuple[int, ...] = (),
    ) -> str:
        """Run `argv` to its end and return what it printed.

        Raises:
            BootstrapError: It failed; the sentence names the cause and the log.
        """
        path = self.log_directory / f"{log}.log"
        if self.stopped.is_set():
            raise BootstrapError(f"stopped before {doing}")
        try:
            self.log_directory.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as sink:
                sink.write(("$ " + " ".join(map(str, argv)) + "\n").encode())
                sink.flush()
                code = self._follow(argv, sink.fileno(), path, progress, cwd, environ or self.environ, self.keep + keep)
        except OSError as error:
            raise failure(doing, str(error), path) from error
        output = path.read_text(errors="replace")
        if code != 0:
            raise failure(doing, output, path)
        return output

    def _follow(
        self,
        argv: Sequence[str | Path],
        sink: int,
        path: Path,
        progress: Progress | None,
        cwd: Path | None,
        environ: Mapping[str, str],
        keep: tuple[int, ...],
    ) -> int:
        process = subprocess.Popen(
            list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=cwd, env=dict(environ),
            pass_fds=keep, start_new_session=True,
        )
        with self._guard:
            self._running.append(process)
        try:
            return _wait(process, _watcher(path, progress))
        except BaseException:
            end_group(process)
            raise
        finally:
            with self._guard:
                self._running.remove(process)
            if progress is not None:
                progress.clear()

    def stop(self) -> None:
        """End every command that still runs (another thread's failure makes them pointless)."""
        self.stopped.set()
        with self._guard:
            running = list(self._running)
        for process in running:
            end_group(process)


def _wait(process: subprocess.Popen[bytes], look: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            look()


def _watcher(path: Path, progress: Progress | None) -> Callable[[], None]:
    """A function that reads what was added to the log and reports the last percentage in it."""
    state = {"offset": 0, "percent": -1}

    def look() -> None:
        if progress is None:
            return
        with path.open("rb") as handle:
            handle.seek(state["offset"])
            added = handle.read()
        found = _PERCENT.findall(added)
        state["offset"] += len(added) - (0 if added.endswith(b"\n") else len(added.rsplit(b"\n", 1)[-1]))
        state["percent"] = max([state["percent"], *(int(number) for number in found)])
        progress.update(state["percent"] if state["percent"] >= 0 else None)

    return look


def end_group(process: subprocess.Popen[bytes], grace: float = 5.0) -> None:
    """End a command and all that it started: TERM first, which lets make remove half-written files, then KILL."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
            if signum == signal.SIGKILL:
                return


def ask(argv: Sequence[str | Path], *, environ: Mapping[str, str], timeout: float = 60.0) -> tuple[int, str, str]:
    """Run a short command and return (exit code, stdout, stderr); 127 if it is not there, 124 if it took too long."""
    try:
        done = subprocess.run(
            list(map(str, argv)), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout,
            env=dict(environ), check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout:.0f} s"
    except OSError as error:
        return 127, "", str(error)
    return done.returncode, done.stdout, done.stderr

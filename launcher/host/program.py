"""Other programs: asked with bounds on time and on what is read, never raising, and with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

SECONDS = 15.0
"""What a program may take for an answer."""
MOST = 4 << 20
"""Bytes of each stream that are read."""
PAUSE = 0.02


@dataclass(frozen=True)
class Answer:
    """What a program said."""

    code: int | None
    """Exit code; minus n for signal n; None if it could not be run, or did not end in time."""
    stdout: str = ""
    stderr: str = ""
    """What it printed there; if there is no exit code, the reason for that."""
    missing: bool = False
    """Whether there is no such program."""

    @property
    def ok(self) -> bool:
        """Whether the program ended well; what it printed may still be nonsense."""
        return self.code == 0

    @property
    def complaint(self) -> str:
        """The last line that it printed, stderr before stdout, for people."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[-1].strip()[:300] if lines else f"exit code {self.code} and no message"

    @property
    def fault(self) -> str:
        """Why it ended badly, in a few words: with its exit code and the first line that it printed."""
        lines = [line.strip() for line in f"{self.stderr}\n{self.stdout}".splitlines() if line.strip()]
        first = lines[0][:160] if lines else "without a word"
        return first if self.code is None else f"ended with {self.code}: {first}"


class Flag(Protocol):
    """What another thread can set, such as `threading.Event`."""

    def is_set(self) -> bool:
        """Whether it was set."""
        ...


def run(
    argv: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    stdin: str = "",
    cwd: str | Path | None = None,
    interrupted: Flag | None = None,
) -> Answer:
    """Run a short command.  Never raises.

    Its output goes to files and not into pipes, so a child that outlives it cannot keep the caller waiting.  The program gets a
    session of its own, and that whole process group is killed at the end.

    Args:
        argv: the program and its arguments.
        environment: its whole environment; by default this process's.
        seconds: after so many the program is killed, and the answer has no code.
        stdin: text that the program reads; surrogates stand for raw bytes.
        cwd: its working directory.
        interrupted: once it is set, the program is killed.
    """
    if interrupted is not None and interrupted.is_set():
        return Answer(None, stderr="interrupted")
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode("utf-8", "surrogateescape"))
        given.seek(0)
        try:
            process = subprocess.Popen(
                [str(part) for part in argv], stdin=given, stdout=out, stderr=err, env=environment, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return Answer(None, stderr=f"cannot be run: {reason}", missing=isinstance(error, FileNotFoundError))
        try:
            fault = _wait(process, seconds, interrupted)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        return Answer(code, _text(out), _text(err)) if fault is None else Answer(None, stderr=fault)


def _wait(process: subprocess.Popen[bytes], seconds: float, interrupted: Flag | None) -> str | None:
    """Wait for the end; returns why there was none."""
    if interrupted is None:
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"no answer within {seconds:.0f} s"
        return None
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        if interrupted.is_set():
            return "interrupted"
        if time.monotonic() > deadline:
            return f"no answer within {seconds:.0f} s"
        time.sleep(PAUSE)
    return None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST).decode("utf-8", "replace").replace("\0", "")

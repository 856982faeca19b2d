"""Asking programs that may hang, die or print garbage: bounded in time and in what is read, nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SECONDS = 15.0
"""What a tool may take for an answer."""
MOST = 4 << 20
"""Bytes of an answer that are read."""


@dataclass(frozen=True)
class Answer:
    """What a tool said."""

    code: int | None
    """Exit code; None where it could not be run or did not end."""
    out: str = ""
    err: str = ""
    complaint: str = ""
    """Why there is no exit code, else ''."""

    @property
    def ok(self) -> bool:
        """Whether it ended well and said something."""
        return self.code == 0 and bool(self.out.strip())

    @property
    def fault(self) -> str:
        """Why the answer is of no use, in a few words."""
        if self.complaint:
            return self.complaint
        lines = [line.strip() for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        return f"ended with {self.code}: {lines[0][:160] if lines else 'without a word'}"


def ask(argv: Sequence[str | Path], environ: Mapping[str, str], timeout: float = SECONDS) -> Answer:
    """Run a short command.

    Its output goes to files and not into pipes: a child that outlives it cannot keep us waiting.  In the end its whole process
    group is ended.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                [str(part) for part in argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(environ),
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return Answer(None, complaint=f"cannot be run: {getattr(error, 'strerror', None) or error}")
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return Answer(None, complaint=f"no answer within {timeout:.0f} s")
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Answer(code, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    data = file.read(MOST)
    return data.decode("utf-8", "replace").replace("\0", "")


def programs(name: str, path: str) -> list[Path]:
    """Every program of this name on a PATH, in its order; those that are one and the same file only once."""
    found: dict[Path, Path] = {}
    for entry in path.split(os.pathsep):
        candidate = Path(entry or ".") / name
        if entry and candidate.is_file() and os.access(candidate, os.X_OK):
            found.setdefault(candidate.resolve(), candidate)
    return list(found.values())

"""Marks of ranks: what a rank's wrapper says about it, in ``attempts/0001/ranks/rank-0000.json``.

Exit codes of mpirun and of shells get lost on the way; these do not.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from launcher.host.files import as_text, read_as, replace_text
from launcher.jobdir.paths import AttemptPaths


@dataclass(frozen=True)
class RankMark:
    """What is known about one rank."""

    rank: int
    host: str
    wrapper_pid: int
    """Process id of the part of the wrapper that owns the program and all that comes from it."""
    attempt: int = 1
    pid: int | None = None
    """Process id of the user's program; None if it could not be started."""
    started: float = 0.0
    """Unix time, seconds."""
    heartbeat: float = 0.0
    """Unix time of the last sign of life, seconds.  Where the file cannot be rewritten, its modification time changes instead."""
    ended: float | None = None
    """Unix time, seconds; None while it runs, or if the wrapper was killed before it could say."""
    exit_code: int | None = None
    """The program's own code; 128 + n if signal n ended it."""
    signal: int | None = None
    """The signal that ended it."""
    stopped: bool = False
    """Whether it was told to stop before it ended: such an end is no cause of a failure, but a consequence of one.  Noted at
    once, because mpirun may kill the wrapper before the program has ended."""
    stop_cause: str | None = None
    """Why it was told to stop, if the wrapper knows: one of the causes of `launcher.jobdir.words`."""
    error: str | None = None
    """Why it could not be started."""
    lost_output: int = 0
    """Bytes of output that the log refused."""

    @property
    def failed(self) -> bool:
        """Whether it ended, and not well."""
        return self.exit_code is not None and self.exit_code != 0

    def ended_now(self, status: int, *, lost_output: int) -> RankMark:
        """The mark after the program's end; ``status`` is as `subprocess.Popen.returncode`."""
        now = time.time()
        return replace(
            self,
            heartbeat=now,
            ended=now,
            exit_code=status if status >= 0 else 128 - status,
            signal=-status if status < 0 else None,
            lost_output=lost_output,
        )

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that a reader never sees half a mark.

        A full disk or a removed job directory is reported on stderr and does not end the rank.
        """
        try:
            replace_text(path, as_text(asdict(self)))
        except OSError as error:
            print(f"rank {self.rank}: its mark cannot be written: {path}: {error.strerror}", file=sys.stderr)

    def beat(self, path: Path) -> RankMark:
        """Show life; returns the mark as it stands in the file now.  Never raises, and never makes a file that was not there."""
        alive = replace(self, heartbeat=time.time())
        try:
            if not path.exists():
                return self
            replace_text(path, as_text(asdict(alive)))
        except OSError:
            _touch(path)
        return alive


def _touch(path: Path) -> None:
    """Needs no space on a full disk."""
    try:
        os.utime(path)
    except OSError:
        return  # the directory is gone: whoever looks for the mark sees that it is not there


def read_marks(attempt: AttemptPaths, ranks: int) -> list[RankMark | None]:
    """The marks of all ranks by rank; None for those that never started, or whose file cannot be read."""
    return [read_mark(attempt.rank_mark(rank)) for rank in range(ranks)]


def read_mark(path: Path) -> RankMark | None:
    """One mark; None if it is missing or damaged."""
    return read_as(RankMark, path)

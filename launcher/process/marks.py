"""Start and exit marks of ranks: what a rank's wrapper says about it, in ``ranks/rank-0000.json``.

Exit codes of mpirun and of shells get lost on the way; these do not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.paths import JobPaths


@dataclass(frozen=True)
class RankMark:
    """What is known about one rank."""

    rank: int
    host: str
    wrapper_pid: int
    pid: int | None = None
    """Process id of the user's program; None where it could not be started."""
    started: float = 0.0
    """Unix time, seconds."""
    ended: float | None = None
    """Unix time, seconds; None while it runs, or where the wrapper was killed before it could say."""
    exit_code: int | None = None
    """The program's own code; 128 + n where signal n ended it."""
    signal: int | None = None
    """The signal that ended it."""
    stopped: bool = False
    """Whether it was told to stop before it ended: such an end is no cause of a failure, but a consequence of one.  Noted at
    once, because mpirun may kill the wrapper before the program has ended."""
    error: str | None = None
    """Why it could not be started."""
    lost_output: int = 0
    """Bytes of output that the log refused."""

    @property
    def failed(self) -> bool:
        """Whether it ended, and not well."""
        return self.exit_code is not None and self.exit_code != 0

    def ended_now(self, status: int, *, stopped: bool, lost_output: int) -> RankMark:
        """The mark after the program's end; ``status`` is as `subprocess.Popen.returncode`."""
        return replace(
            self,
            ended=time.time(),
            exit_code=status if status >= 0 else 128 - status,
            signal=-status if status < 0 else None,
            stopped=stopped,
            lost_output=lost_output,
        )

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that a reader never sees half a mark.

        A full disk or a removed job directory is reported on stderr and does not end the rank.
        """
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("w", encoding="ascii") as file:
                json.dump(asdict(self), file)
            temporary.replace(path)
        except OSError as error:
            print(f"rank {self.rank}: its mark cannot be written: {path}: {error.strerror}", file=sys.stderr)


def read_marks(job: JobPaths, ranks: int) -> list[RankMark | None]:
    """The marks of all ranks by rank; None for those that never started, or whose file cannot be read."""
    return [_read(job.rank_mark(rank)) for rank in range(ranks)]


def _read(path: Path) -> RankMark | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text("ascii"))
        return RankMark(**data)
    except (OSError, ValueError, TypeError):
        return None

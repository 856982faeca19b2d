"""The logs of ranks and of what starts them: all attempts append to one file, with a line between them.

Standard library only: the wrapper around every rank imports it.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

TAIL_BYTES = 1 << 16
SEPARATOR = re.compile(rb"^=== attempt (\d+), [0-9-]{10} [0-9:]{8}, \S+ ===\n", re.MULTILINE)
"""The line above all that an attempt after the first has written; its group is the attempt's number."""


def separator(attempt: int) -> bytes:
    """The line, at this moment and on this host."""
    return f"=== attempt {attempt}, {time.strftime('%Y-%m-%d %H:%M:%S')}, {os.uname().nodename} ===\n".encode()


def end_of(path: Path) -> bytes:
    """The last `TAIL_BYTES` of a log; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def of_last_attempt(data: bytes) -> bytes:
    """What the last attempt has written of it."""
    begin = max((found.end() for found in SEPARATOR.finditer(data)), default=0)
    return data[begin:]

"""Text of programs and files, made safe for a terminal."""

from __future__ import annotations

import re
from pathlib import Path

TAIL_LINES = 20
TAIL_BYTES = 1 << 16
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text without the control characters that would move a terminal's cursor or change its colours."""
    return _CONTROL.sub("", text).encode("utf-8", "backslashreplace").decode("utf-8")


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log, safe for a terminal; empty where there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            data = file.read()
    except OSError:
        return []
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return [printable(line) for line in text.rstrip().split("\n")[-lines:]] if text.strip() else []

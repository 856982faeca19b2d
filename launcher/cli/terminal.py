"""Text of programs and files, made safe for a terminal."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.jobdir.logs import end_of

TAIL_LINES = 20
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text without the control characters that would move a terminal's cursor or change its colours."""
    return _CONTROL.sub("", text).encode("utf-8", "backslashreplace").decode("utf-8")


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log, safe for a terminal; empty where there is no log."""
    return last_lines(end_of(path), lines)


def last_lines(data: bytes, lines: int = TAIL_LINES) -> list[str]:
    """The same of what was read from a log."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return [printable(line) for line in text.rstrip().split("\n")[-lines:]] if text.strip() else []

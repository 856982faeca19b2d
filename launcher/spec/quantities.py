"""Durations and sizes as people write them, with a unit; a bare number is refused, because it could mean anything.

Durations: ``90m``, ``1h30m``, ``1.5h``, ``2d 12h``, ``500ms``, and the clock forms ``01:30:00`` and ``1-12:00:00`` (days-hours)
that schedulers print.  Sizes: ``8GiB`` (1024-based), ``8GB`` (1000-based).
"""

from __future__ import annotations

import itertools
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

LONGEST = 10 * 365 * 86_400.0
"""Seconds that a duration may last: ten years, so that every sum of times stays a date."""
LARGEST = 2**60

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
"""Seconds in a unit of time."""
BYTES = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
"""Bytes in a unit of size."""

_NUMBER = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s?(ms|s|m|h|d|w)")
DURATION_PATTERN = rf"^\s*(0|({_NUMBER}\s?(ms|s|m|h|d|w)\s?)+|([0-9]{{1,5}}-)?[0-9]{{1,6}}:[0-5][0-9]:[0-5][0-9])\s*$"
SIZE_PATTERN = rf"^\s*(0|{_NUMBER}\s?(B|kB|[KMGT]B|[KMGT]iB))\s*$"
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])")
_SIZE = re.compile(rf"({_NUMBER})\s?([A-Za-z]{{1,3}})")
_DURATION_RULE = "a duration has a unit, as in 90s, 30m, 1h30m or 01:30:00"
_SIZE_RULE = "a size has a unit, as in 512MiB or 8GiB"


def parse_duration(value: Any) -> float:
    """Parse a text such as ``1h30m`` to seconds; 0 needs no unit.

    Raises:
        ValueError: if it is something else, with what to write instead.
    """
    if value in (0, "0") and value is not False:
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} of what? {_DURATION_RULE}: write {value}s or {value}m")
    if not isinstance(value, str):
        raise ValueError(_DURATION_RULE)
    text = value.strip()
    clock = _CLOCK.fullmatch(text)
    seconds = _of_clock(clock) if clock else _of_parts(text)
    if seconds > LONGEST:
        raise ValueError("is longer than ten years")
    return seconds


def _of_clock(clock: re.Match[str]) -> float:
    days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    if days and hours > 23:
        raise ValueError("after days, as in 1-12:00:00, there are at most 23 hours")
    return days * 86_400.0 + hours * 3_600.0 + minutes * 60.0 + seconds


def _of_parts(text: str) -> float:
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ValueError(_remedy(text))
    sizes = [UNITS[unit] for _, unit in parts]
    if any(first <= second for first, second in itertools.pairwise(sizes)):
        raise ValueError(f"{_DURATION_RULE}: larger units first, each once")
    if any("." in number for number, _ in parts[:-1]):
        raise ValueError(f"{_DURATION_RULE}: only the last part may have a fraction")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def _remedy(text: str) -> str:
    short = text if len(text) <= 30 else text[:27] + "..."
    if re.fullmatch(r"[0-9]{1,6}:[0-9]{2}", text):
        first, second = text.split(":")
        return f"{text} may mean hours or minutes: write {first}h{second}m, {first}m{second}s, or all three parts, 00:{text:0>5}"
    if text != text.lower() and _PART.fullmatch(text.lower()):
        return f"{short}: units are lower case: write {text.lower()}"
    return f"{short!r} is no duration: {_DURATION_RULE}"


def format_duration(seconds: float) -> str:
    """Write a text from which `parse_duration` makes the same number."""
    if seconds == int(seconds):
        left, text = int(seconds), ""
        for unit in ("d", "h", "m", "s"):
            count, left = divmod(left, int(UNITS[unit]))
            text += f"{count}{unit}" if count else ""
        return text or "0s"
    return f"{seconds:.9f}".rstrip("0") + "s"


def parse_size(value: Any) -> int:
    """Parse a text such as ``8GiB`` to bytes; 0 needs no unit.

    Raises:
        ValueError: if it is something else, with what to write instead.
    """
    if value in (0, "0") and value is not False:
        return 0
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f"{value} of what? {_SIZE_RULE}: write {value}MiB or {value}GiB")
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(_SIZE_RULE)
    number, unit = found.groups()
    if unit not in BYTES:
        raise ValueError(_size_remedy(number, unit))
    size = round(float(number) * BYTES[unit]) if "." in number else int(number) * BYTES[unit]
    if size > LARGEST:
        raise ValueError("is larger than 2^60 bytes")
    return size


def _size_remedy(number: str, unit: str) -> str:
    letter = unit[0].upper()
    if letter in "KMGT":
        return f"{number}{unit}: write {number}{letter}iB (1024-based, as schedulers count) or {number}{letter}B (1000-based)"
    return f"{unit} is no unit of size: {_SIZE_RULE}"


def format_size(size: int) -> str:
    """Write a text from which `parse_size` makes the same number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return f"{size}B"


def _schema(pattern: str, example: str) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", "pattern": pattern}, {"const": 0}], "examples": [example]}


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema(_schema(DURATION_PATTERN, "1h30m")),
]
"""Seconds, written with a unit."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema(_schema(SIZE_PATTERN, "8GiB")),
]
"""Bytes, written with a unit."""

"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, one: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"

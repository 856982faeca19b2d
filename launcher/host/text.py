"""Numbers, times and errors in sentences."""

from __future__ import annotations


def counted(number: int, one: str) -> str:
    """``1 core``, ``2 cores``."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def duration(seconds: float) -> str:
    """Seconds as people write them: ``8 s``, ``1 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def short(text: str, most: int = 60) -> str:
    """A text, cut to ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def why(error: Exception, known: str | None = None) -> str:
    """An error in words, with the file to blame if the system names one, other than the ``known`` one of the sentence around."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename in (None, known) else f"{error.filename}: {error.strerror}"

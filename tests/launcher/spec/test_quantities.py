from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.spec.quantities import LONGEST, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400), ("1h30m", 5400), ("1h 30m", 5400), ("01:30:00", 5400), ("1:30:00", 5400), ("1.5h", 5400), ("500ms", 0.5),
        ("2d12h", 216_000), ("1-12:00:00", 129_600), ("100:00:00", 360_000), (" 10s ", 10), ("1w", 604_800), (0, 0), ("0", 0),
        ("0s", 0), ("1m0.5s", 60.5), ("010s", 10),
    ],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (90, "90 of what? a duration has a unit, as in 90s, 30m, 1h30m or 01:30:00: write 90s or 90m"),
        (0.5, "write 0.5s or 0.5m"),
        ("90", "'90' is no duration"),
        ("1:30", "1:30 may mean hours or minutes: write 1h30m, 1m30s, or all three parts, 00:01:30"),
        ("1H", "units are lower case: write 1h"),
        ("1e3", "'1e3' is no duration"),
        ("1_000s", "'1_000s' is no duration"),
        ("30m1h", "larger units first, each once"),
        ("1h1h", "larger units first, each once"),
        ("1.5h30m", "only the last part may have a fraction"),
        ("-5s", "'-5s' is no duration"),
        ("1:60:00", "is no duration"),
        ("1-24:00:00", "there are at most 23 hours"),
        ("99999d", "longer than ten years"),
        ("9" * 5000 + "s", "is no duration"),
        ("", "is no duration"),
        (True, "a duration has a unit"),
        (False, "a duration has a unit"),
        (None, "a duration has a unit"),
        ([], "a duration has a unit"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_to_write(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        parse_duration(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 << 30), ("8GB", 8 * 10**9), ("1.5 GiB", 3 << 29), ("512MiB", 512 << 20), ("7B", 7), (0, 0)]
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (8, "8 of what? a size has a unit, as in 512MiB or 8GiB: write 8MiB or 8GiB"),
        ("8G", "8G: write 8GiB (1024-based, as schedulers count) or 8GB (1000-based)"),
        ("8gib", "write 8GiB"),
        ("8X", "X is no unit of size"),
        ("GiB", "a size has a unit"),
        ("-1GiB", "a size has a unit"),
        ("9999999TiB", "larger than"),
        (True, "a size has a unit"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write(text: Any, message: str) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        parse_size(text)
    assert message in str(caught.value)


@given(st.integers(0, int(LONGEST)) | st.integers(0, 10**9).map(lambda number: number / 1000))
def test_what_is_written_out_reads_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


@given(st.integers(0, 2**60) | st.integers(0, 2**20).map(lambda number: number << 30))
def test_sizes_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == size

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.attempt.rank.output import HIDDEN, MAX_HELD, LineBuffer, LogFile, Output, Redactor


@given(st.lists(st.binary(max_size=30)), st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"x"]), max_size=10))
def test_lines_are_whole_and_nothing_is_lost(chunks: list[bytes], ends: list[bytes]) -> None:
    pieces = [piece for pair in zip(chunks, ends, strict=False) for piece in pair]
    buffer = LineBuffer()
    written = [buffer.feed(piece) for piece in pieces]
    assert all(not text or text.endswith((b"\n", b"\r")) for text in written)
    assert b"".join([*written, buffer.finish()]) == b"".join(pieces)


def test_an_endless_line_is_not_held_for_ever() -> None:
    buffer = LineBuffer()
    assert buffer.feed(b"x" * (MAX_HELD + 1)) == b"x" * (MAX_HELD + 1)


@given(st.lists(st.sampled_from([b"secret-a", b"secr", b"et-", b"a", b"\n", b"zz", b"secret-"]), max_size=20), st.data())
def test_a_secret_is_hidden_wherever_the_stream_is_cut(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    redactor = Redactor(["secret-a"])
    shown = b""
    while text:
        cut = data.draw(st.integers(1, len(text)))
        shown += redactor.feed(text[:cut])
        text = text[cut:]
    shown += redactor.finish()
    assert shown == b"".join(parts).replace(b"secret-a", HIDDEN)


def test_longer_secrets_first_and_lines_of_long_ones() -> None:
    redactor = Redactor(["abcd", "abcdefgh", "-----KEY\n  line-one\nline-two\n"])
    assert redactor.feed(b"abcdefgh abcd [line-one] x-----KEYx line-two\n") == b"*** *** [***] x***x ***\n"


def test_secrets_that_are_no_text() -> None:
    assert Redactor(["\udcff\udcfe1234"]).feed(b"x\xff\xfe1234\n") == b"x***\n"


def test_output_keeps_bytes_and_ends_with_the_last_line(tmp_path: Path) -> None:
    read, write = os.pipe()
    output = Output(read, LogFile(tmp_path / "log"), [])
    os.write(write, b"\xff\xfe bad\nhalf")
    assert output.read_some()
    assert (tmp_path / "log").read_bytes() == b"\xff\xfe bad\n"
    os.close(write)
    assert not output.read_some()
    assert not output.open
    output.close()
    assert (tmp_path / "log").read_bytes() == b"\xff\xfe bad\nhalf"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device stands in for a full disk")
def test_a_full_disk_is_counted_not_raised() -> None:
    log = LogFile(Path("/dev/full"))
    log.write(b"12345")
    log.close()
    assert log.lost == 5


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        log = LogFile(tmp_path / "log")
        log.write(text)
        log.close()
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"

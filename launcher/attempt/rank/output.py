"""From a pipe to a log: whole lines, bytes kept, secrets replaced.

A partial line is held back until its end arrives, until it is `MAX_HELD` bytes long, or until the output ends.  A carriage return
ends a line too, so that progress bars appear as they move.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from launcher.jobdir.logs import separator
from launcher.jobdir.plan import SHORTEST_SECRET

CHUNK = 1 << 16
MAX_HELD = 1 << 16
HIDDEN = b"***"
LAST = 1 << 13
"""Bytes of output that are remembered, for the time when no log can take them."""


class Redactor:
    """Replaces secret values in a stream of bytes, also if the chunks of the stream cut a value.

    A value of several lines is also hidden line by line: output often indents or prefixes lines.
    """

    def __init__(self, values: Iterable[str]) -> None:
        whole = [value for value in values if value]
        parts = [line.strip() for value in whole for line in value.splitlines() if len(line.strip()) >= SHORTEST_SECRET]
        encoded = {text.encode("utf-8", "surrogateescape") for text in (*whole, *parts)}
        self._values = sorted(encoded, key=len, reverse=True)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown of the stream so far; keeps back an end that may be the beginning of a secret."""
        if not self._values:
            return data
        text = self._replace(self._held + data)
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> bytes:
        """What was kept back, at the end of the stream."""
        text, self._held = self._held, b""
        return text

    def _replace(self, text: bytes) -> bytes:
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text

    def _possible_start(self, text: bytes) -> int:
        """Length of the longest end of the text that begins a secret."""
        longest = 0
        for value in self._values:
            start = text.find(value[:1], max(0, len(text) - len(value) + 1))
            while start >= 0 and not value.startswith(text[start:]):
                start = text.find(value[:1], start + 1)
            longest = max(longest, len(text) - start if start >= 0 else 0)
        return longest


class LineBuffer:
    """Holds back the last, incomplete line of a stream."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The complete lines so far, the held back part first."""
        text = self._held + data
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if end == 0 and len(text) > MAX_HELD:
            end = len(text)
        self._held = text[end:]
        return text[:end]

    def finish(self) -> bytes:
        """The last line, if it had no end."""
        text, self._held = self._held, b""
        return text


class LogFile:
    """An append-only log that never ends the program that writes to it: what a full disk refuses is counted instead."""

    def __init__(self, path: Path, attempt: int = 1) -> None:
        self.lost = 0
        """Bytes that could not be written."""
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        if attempt > 1:
            self.write(separator(attempt))

    def write(self, data: bytes) -> None:
        """Append."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except OSError:
                self.lost += len(view)
                return

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Output:
    """Reads one pipe into one log; the loop that owns it calls `read_some` when `fileno` is readable."""

    def __init__(self, pipe: int, log: LogFile, secrets: Iterable[str]) -> None:
        os.set_blocking(pipe, False)
        self._pipe = pipe
        self._log = log
        self._lines = LineBuffer()
        self._redactor = Redactor(secrets)
        self.open = True
        """Whether the pipe may still bring something."""
        self.last = b""
        """The end of what has come, secrets hidden."""

    @classmethod
    def of(cls, process: subprocess.Popen[bytes], log: LogFile, secrets: Iterable[str]) -> Output:
        """The output of a program that was started with its streams in a pipe."""
        assert process.stdout is not None
        pipe = os.dup(process.stdout.fileno())
        process.stdout.close()  # the object would otherwise close the descriptor a second time
        return cls(pipe, log, secrets)

    def fileno(self) -> int:
        """Descriptor to wait on, while `open`."""
        return self._pipe

    @property
    def lost(self) -> int:
        """Bytes that the log refused."""
        return self._log.lost

    def read_some(self) -> bool:
        """Read what is there, at most one chunk.  Returns whether there was anything."""
        try:
            data = os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._keep(self._redactor.feed(self._lines.feed(data)))
        return True

    def _keep(self, data: bytes) -> None:
        self.last = (self.last + data[-LAST:])[-LAST:]
        self._log.write(data)

    def drain(self, seconds: float = 0.2) -> None:
        """Take what is in the pipe; a process left behind may hold it open, so not for ever."""
        deadline = time.monotonic() + seconds
        while self.open and time.monotonic() < deadline:
            if not self.read_some() and self.open:
                select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Write what was held back and close pipe and log.  Idempotent."""
        if not self.open:
            return
        self.open = False
        self._keep(self._redactor.feed(self._lines.finish()) + self._redactor.finish())
        os.close(self._pipe)
        self._log.close()

"""Signals as readable events, so that one loop can wait for output, time and signals together."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType, TracebackType

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask to stop."""


class SignalBox:
    """Collects signals while it is open; for the main thread only.

    `fileno` becomes readable when one has arrived; `take` returns those since the last call.  SIGCHLD wakes the loop as well, so
    that the end of a child is noticed at once.
    """

    def __init__(self, wanted: Sequence[signal.Signals] = STOPPING) -> None:
        self._wanted = (*wanted, signal.SIGCHLD)
        self._old: dict[signal.Signals, object] = {}
        self._read, self._write = -1, -1
        self._old_wakeup = -1

    def __enter__(self) -> SignalBox:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in self._wanted:
            self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal returned
        signal.set_wakeup_fd(self._old_wakeup)
        os.close(self._read)
        os.close(self._write)

    @staticmethod
    def _note(number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor has already carried the number; a handler must exist for that to happen."""

    def fileno(self) -> int:
        """Descriptor to wait on."""
        return self._read

    def take(self) -> list[int]:
        """Signals that arrived since the last call, in order, SIGCHLD left out."""
        try:
            raw = os.read(self._read, 4096)
        except BlockingIOError:
            return []
        return [number for number in raw if number != signal.SIGCHLD]

"""Ctrl-C at a moment when something must be done wholly or not at all."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class HeldInterrupts:
    """Within it, the first Ctrl-C is only noted; a second one breaks in as usual.

    Attributes:
        happened: whether there was one.
    """

    def __init__(self) -> None:
        self.happened = False
        self._before: Any = None

    def __enter__(self) -> HeldInterrupts:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self.happened:
            raise KeyboardInterrupt
        self.happened = True

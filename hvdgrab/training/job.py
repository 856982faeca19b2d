"""What a training and whatever runs it tell each other: that it should stop, that it moves on, and that it is done.

Stop requests are signals.  Progress and completion are files that the launcher names in the environment; without a launcher
nothing is written.  This module imports neither torch nor Horovod before they are needed.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from hvdgrab.errors import UsageError

PROGRESS, FINISHED = "HVDGRAB_PROGRESS", "HVDGRAB_FINISHED"
EVERY = 1.0
"""Seconds between two signs of progress, at least."""
_numbers = itertools.count()


class StopSignal:
    """Makes signals a request that all ranks agree on, instead of the end of a process.

    A scheduler's signal reaches the ranks at different steps, or only some of them; all ranks learn of it after the same step,
    so that each saves the same state.  Make it as the script's first act: a signal that comes before ends the process.

    Args:
        signals: names without SIG, as in the job's YAML (``checkpoint: {signal: USR1}``).  SLURM preempts with TERM.

    Raises:
        UsageError: a signal is unknown or cannot be caught, or this is not the main thread.
    """

    def __init__(self, signals: Sequence[str] = ("USR1", "TERM")) -> None:
        self.requested = False
        """Whether this rank has got a signal; others may not have yet."""
        self._name = f"hvdgrab.stop.{next(_numbers)}"
        self._pending: Any = None
        self._process = os.getpid()
        self._agreed = False
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("StopSignal must be made in the main thread: Python hears signals only there")
        numbers = [_number(name) for name in signals]
        for number in numbers:
            signal.signal(number, self._note)
        atexit.register(_ignore, numbers)

    def agreed(self) -> bool:
        """Whether any rank was asked to stop; collective: call it once after every step, on all ranks.

        The answer is about the step before, so that no rank waits for it: the flag travels along with the next gradients.
        """
        hvd = _horovod()
        if hvd is None or hvd.size() == 1:
            return self.requested
        import torch

        if self._pending is not None:
            self._agreed = bool(hvd.synchronize(self._pending)[0] > 0)
            self._pending = None
        if not self._agreed:
            flag = torch.tensor([float(self.requested)])
            self._pending = hvd.allreduce_async(flag, name=self._name, op=hvd.Sum)
        return self._agreed

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() == self._process:
            self.requested = True
        elif number == signal.SIGTERM:  # a forked helper, such as a worker of a pool, which its parent ends and waits for
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _number(name: str) -> signal.Signals:
    number = signal.Signals.__members__.get(f"SIG{str(name).upper().removeprefix('SIG')}")
    if number is None:
        raise UsageError(f"there is no signal {name!r} on this system: write USR1, USR2, TERM or another of `kill -l`")
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(f"no process can catch {number.name}: write USR1, USR2 or TERM")
    return number


def _ignore(numbers: Sequence[int]) -> None:
    """Ignore signals while Python ends: a training that is done has nothing to save, and must not end with a signal's code."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _horovod() -> Any | None:
    if "horovod.torch" not in sys.modules:
        return None
    from hvdgrab.comm.world import initialized_horovod

    return initialized_horovod()


def ignore_requests() -> None:
    """Ignore stop requests in a process that serves the ranks and ends with them: they must not end it first."""
    if threading.current_thread() is threading.main_thread():
        _ignore((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM))


class Progress:
    """Tells the launcher about once a second that the training moves on; one that stands still is ended and restarted."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        named = environment.get(PROGRESS)
        self._path = Path(named) if named else None
        self._next = 0.0

    def moved(self) -> None:
        """Note that a unit is done.  A directory that cannot be written must not end a training."""
        if self._path is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        with contextlib.suppress(OSError):
            self._path.touch()


def mark_finished(environment: Mapping[str, str] = os.environ) -> None:
    """Tell the launcher that the training is done: a job with ``checkpoint: {require_finished: true}`` succeeds only then.

    Call it on one rank after the last result is written.

    Raises:
        OSError: the mark cannot be written.
    """
    named = environment.get(FINISHED)
    if not named:
        return
    path = Path(named)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"time": time.time()}) + "\n", "ascii")
    temporary.replace(path)

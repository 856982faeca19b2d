"""Asked to stop by a signal: all ranks learn it after the same step, so that each saves the same state.

A scheduler's signal reaches the ranks at different steps, or only some of them.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from hvdgrab.errors import UsageError

_numbers = itertools.count()


class StopSignal:
    """Makes signals a request that all ranks agree on, instead of the end of a process.

    Make it as the script's first act: a signal that comes before ends the process.  It imports neither torch nor Horovod.

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

        The answer is about the step before, so that nobody waits for it: the flag travels along with the next gradients.
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
        elif number == signal.SIGTERM:  # a forked helper, such as a worker of a pool: who ends it waits for its end
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
    """A training that is done has nothing to save: Python's own end would let a signal end the process with its code."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


def _horovod() -> Any | None:
    if "horovod.torch" not in sys.modules:
        return None
    from hvdgrab.comm.world import initialized_horovod

    return initialized_horovod()


def ignore_requests() -> None:
    """For a process that serves the ranks and ends with them: what asks them to save themselves must not end it first."""
    if threading.current_thread() is threading.main_thread():
        _ignore((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM))

"""The loop around the engine: waits for time, for requests, and for the end of supervisors."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable
from types import FrameType

from launcher.daemon.context import Context, log
from launcher.daemon.engine import Engine
from launcher.daemon.record.database import RecordError
from launcher.daemon.record.lease import LeaseLostError
from launcher.daemon.spool import Spool
from launcher.host.files import obstacle

PROBLEM_PAUSE = 2.0
"""Seconds until the next try, while something keeps the daemon from its work."""
REQUEST_BYTES = 1 << 16
"""Space that a request may need, with the environment that is kept for it."""


class Waker:
    """Ends a wait from another thread, or from a signal."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the present wait, or the next one."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def wait(self, seconds: float, others: list[int]) -> None:
        """Wait until woken, until another descriptor is readable, or some seconds have passed."""
        poll = select.poll()
        for descriptor in (self._read, *others):
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)


def run(context: Context, engine: Engine, spool: Spool, waker: Waker, keep_reachable: Callable[[float], object] = id) -> None:
    """Tick until the daemon is asked to stop.

    Args:
        context: what all parts share.
        engine: does the work.
        spool: takes files in.
        waker: ends a wait.
        keep_reachable: called at each tick with the steady time.

    Raises:
        LeaseLostError: where another daemon has taken the record over.
    """
    while not context.stopping.is_set():
        now = context.clock.steady()
        pause, soon = PROBLEM_PAUSE, None
        try:
            pause = engine.tick(now)
            soon = spool.look(now)
            keep_reachable(now)
            _over(context)
            _try_writing(context)
        except LeaseLostError:
            raise
        except RecordError as error:
            _problem(context, str(error))
        except Exception as error:  # whatever it is, the other jobs need a daemon
            _problem(context, f"an error of the daemon itself, see its log: {error!r}", error)
        waker.wait(pause if soon is None else min(pause, soon), _ends(context))


def _problem(context: Context, text: str, error: Exception | None = None) -> None:
    """Say what keeps the daemon from its work: once, and again when it is something else."""
    if context.problem != text:
        log.error("%s", text, exc_info=error)
    context.problem = text


def _over(context: Context) -> None:
    if context.problem is not None:
        log.info("the work goes on")
    context.problem = None


def _try_writing(context: Context) -> None:
    """Whether what was refused would be written now: only then is it no problem any more.

    The record has some space of its own, in which small changes succeed on a full disk; a request needs more.
    """
    if context.refused is None:
        return
    context.store.renew()
    if obstacle(context.dirs.state, REQUEST_BYTES) is not None:
        return
    context.refused = None
    log.info("requests can be written down again")


def _ends(context: Context) -> list[int]:
    """Descriptors that show the end of a supervisor at once."""
    return [number for starter in context.starters.values() for number in getattr(starter, "watched", list)()]


def stop_on_signals(context: Context, waker: Waker) -> None:
    """Let TERM, INT and HUP end the daemon in order; jobs go on."""

    def note(number: int, _: FrameType | None) -> None:
        log.info("ended by %s; jobs go on", signal.Signals(number).name)
        context.stopping.set()
        waker.wake()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)

"""The communication thread: the only thread of a rank that talks to other ranks for hvdgrab."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from hvdgrab.comm.communicator import Communicator
from hvdgrab.errors import CommunicationError, CommunicatorClosed

Result = TypeVar("Result")
UNHEARD_SECONDS, SAID_AFTER = 20.0, 1.0
LOOK_EVERY = 1.0
"""Seconds between two looks: for an error while the training thread waits, around while the communication thread is idle."""

_Job = tuple["Future[Any]", Callable[[Communicator], Any]]


class CommunicationThread:
    """Runs jobs one after the other, in the order in which they were submitted, each with the rank's communicator.

    The first job that raises ends the thread; its exception is raised again by `check`, `submit` and every open future, so that
    the training loop hears of it at its next unit.

    Args:
        connect: makes the communicator; called in the thread, since connecting may wait for other ranks.
        unheard: called in the thread with its error if nobody has picked that up after ``UNHEARD_SECONDS``: the training loop
            then waits for a rank that waits for this thread, and only the end of the process ends that.
        idle: called in the thread about every ``LOOK_EVERY`` seconds while nothing is queued; must not wait.  What it raises
            ends the thread as a job's exception does, but for `CommunicatorClosed`, which is left to the next job.
        describe: says where this rank is, for a wait that takes long.
        warn_every: seconds of a wait after which standard error is told for whom it waits, again and again.
        give_up: seconds of a wait after which it is an error.
        capacity: jobs that may wait; `submit` blocks beyond that (back-pressure).
    """

    def __init__(
        self,
        connect: Callable[[], Communicator],
        unheard: Callable[[BaseException], None],
        idle: Callable[[Communicator], None] | None = None,
        *,
        describe: Callable[[], str],
        warn_every: float,
        give_up: float,
        capacity: int = 64,
    ) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(capacity)
        self._connect, self._unheard, self._idle = connect, unheard, idle
        self._describe, self._warn_every, self._give_up = describe, warn_every, give_up
        self._heard = threading.Event()
        self._communicator: Communicator | None = None
        self.error: BaseException | None = None
        """What ended the thread, if anything did."""
        self.closed = False
        """Whether `close` was called."""
        # A daemon: a rank that dies must not wait for messages that will never come.
        self._thread = threading.Thread(target=self._run, name="hvdgrab-communication", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[Communicator], Result]) -> Future[Result]:
        """Queue ``job``; its result or exception arrives in the future."""
        self.check()
        if self.closed:
            raise CommunicationError("the communication thread is closed: nothing can be sent after optimizer.close()")
        future: Future[Result] = Future()
        while True:
            try:
                self._jobs.put((future, job), timeout=1.0)
                return future
            except queue.Full:
                self.check()

    def check(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self.error is not None:
            self._heard.set()
            raise self.error

    def ask(self, job: Callable[[Communicator], Result], what: str) -> Result:
        """Queue a job and `wait` for its result."""
        return self.wait(self.submit(job), what)

    def wait(self, future: Future[Result], what: str) -> Result:
        """The future's result; tells on standard error for ``what`` and for whom this rank waits, if that takes long.

        Raises:
            CommunicationError: the wait was given up.
            HvdGrabError: whatever happened to the job.
        """
        warn_every, give_up = self._warn_every, self._give_up
        began, next_warning = time.monotonic(), warn_every
        while True:
            try:
                return future.result(timeout=min(warn_every, LOOK_EVERY))
            except FutureTimeoutError:
                self.check()
            except BaseException:
                self._heard.set()
                raise
            waited = time.monotonic() - began
            if waited < min(next_warning, give_up):
                continue
            text = (
                f"{self._describe()}: waits for {what}, {waited:.0f} s so far; missing: {self._missing()}. If one rank alone "
                "looked at a batch or left the loop, give it a DataLoader with a sampler of its own for that"
            )
            if waited >= give_up:
                raise CommunicationError(text + " (stall_timeout is reached)")
            print(f"hvdgrab: {text}", file=sys.stderr, flush=True)
            next_warning += warn_every

    def _missing(self) -> str:
        ranks = [] if self._communicator is None else self._communicator.waiting_for
        return ", ".join(f"rank {rank}" for rank in ranks) or "another rank"

    def close(self, timeout: float) -> bool:
        """Finish the queued jobs, then end the thread; after ``timeout`` seconds give up on them.  Idempotent, never hangs.

        Returns:
            Whether everything that was queued has been done; if not, `error` may say why.
        """
        self._heard.set()
        if not self.closed:
            self.closed = True
            try:
                self._jobs.put(None, timeout=timeout)
            except queue.Full:
                self._cancel()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._cancel()
            self._thread.join(1.0)
        return self.error is None and not self._thread.is_alive()

    def _cancel(self) -> None:
        if self._communicator is not None:
            self._communicator.cancel()

    def _run(self) -> None:
        try:
            self._communicator = self._connect()
        except BaseException as error:
            self._fail(error)
        while (item := self._next()) is not None:
            future, job = item
            if self.error is None:
                self._do(future, job)
            else:
                future.set_exception(self.error)
            # Not kept across the wait for the next job: a job's buffers and its caller may go as soon as it is done.
            del item, future, job
        if self._communicator is not None:
            self._communicator.close()

    def _next(self) -> _Job | None:
        """The next job, None at the end; looks around while there is none."""
        while self._idle is not None and self.error is None:
            with contextlib.suppress(queue.Empty):
                return self._jobs.get(timeout=LOOK_EVERY)
            self._look()
        return self._jobs.get()

    def _look(self) -> None:
        assert self._idle is not None
        assert self._communicator is not None
        try:
            with contextlib.suppress(CommunicatorClosed):
                self._idle(self._communicator)
        except BaseException as error:
            self._fail(error)

    def _do(self, future: Future[Any], job: Callable[[Communicator], Any]) -> None:
        assert self._communicator is not None
        try:
            future.set_result(job(self._communicator))
        except BaseException as error:
            future.set_exception(error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Keep the error for the training loop; jobs that wait already learn of it first."""
        self.error = error
        with contextlib.suppress(queue.Empty):
            while (item := self._jobs.get_nowait()) is not None:
                item[0].set_exception(error)
            self._jobs.put(None)
        first = min(SAID_AFTER, UNHEARD_SECONDS)
        if not self._heard.wait(first):  # the training thread waits in Horovod, perhaps for ever
            print(f"hvdgrab: {error}", file=sys.stderr, flush=True)
        if not self._heard.wait(UNHEARD_SECONDS - first):
            self._unheard(error)

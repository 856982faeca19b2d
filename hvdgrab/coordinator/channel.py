"""A session's way to the other ranks: its communication thread, and waiting for it with words."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.worker import CommunicationThread
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import OrderBook

Result = TypeVar("Result")


class Channel:
    """Opened at the first unit.

    Args:
        config: how long a wait may be.
        book: says where this rank is.
        connect, unheard: as for `OrderingSession`.
        idle: as for `CommunicationThread`.
    """

    def __init__(
        self,
        config: GraBConfig,
        book: OrderBook,
        connect: Callable[[], Communicator],
        unheard: Callable[[BaseException], None],
        idle: Callable[[Communicator], None],
    ) -> None:
        self._config, self._book = config, book
        self._thread = CommunicationThread(connect, unheard, idle)
        self.closed = False
        """Whether `close` was called."""

    def submit(self, job: Callable[[Communicator], Result]) -> Future[Result]:
        """Queue a job for the communication thread."""
        return self._thread.submit(job)

    def wait(self, future: Future[Result], what: str) -> Result:
        """The future's result; says where this rank is and for what it waits, if that takes long.

        Raises:
            CommunicationError: ``stall_timeout`` is reached.
            HvdGrabError: whatever happened to the job.
        """
        book, config = self._book, self._config
        place = f"rank {book.rank}, epoch {book.epoch}, after {book.position} of {book.n} units"
        return self._thread.wait(future, f"{place}: waits for {what}", config.stall_warning, config.stall_timeout)

    def ask(self, job: Callable[[Communicator], Result], what: str) -> Result:
        """Queue a job and wait for its result."""
        return self.wait(self.submit(job), what)

    def check(self) -> None:
        """Raise what ended the communication, if anything did."""
        self._thread.check()

    def close(self, timeout: float) -> bool:
        """See `CommunicationThread.close`."""
        self.closed = True
        return self._thread.close(timeout)

    @property
    def error(self) -> BaseException | None:
        """What ended the communication, if anything did."""
        return self._thread.error

"""A bell that the engine's thread rings and requests of the server's loop wait for."""

from __future__ import annotations

import asyncio
import contextlib


class Bell:
    """`ring` may be called from any thread; the other methods belong to the server's loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.closed = False
        """Whether the daemon ends: nobody should wait any more."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say which loop the server runs in."""
        self._loop = loop

    def ring(self) -> None:
        """Wake all who wait."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Wake all who wait: the daemon ends."""
        self.closed = True
        self.ring()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def listen(self) -> asyncio.Future[None]:
        """Start to listen: a ring from now on is not missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    async def wait(self, listening: asyncio.Future[None], seconds: float) -> None:
        """Wait until it rang, or some seconds have passed."""
        await asyncio.wait([listening], timeout=seconds)
        self._waiting.discard(listening)

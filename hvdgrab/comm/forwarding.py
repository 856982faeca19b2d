"""A communicator that passes every call on to another one of the same ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer, Communicator


class ForwardingCommunicator:
    """Base of communicators that do some calls in a way of their own and leave the others to ``inner``."""

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        """Does what is left to it."""
        self.rank, self.size = inner.rank, inner.size

    @property
    def waiting_for(self) -> list[int]:
        """See `Communicator.waiting_for`."""
        return self.inner.waiting_for

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.gather`."""
        self.inner.gather(send, receive, root)

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.allgather`."""
        self.inner.allgather(send, receive)

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.alltoall`."""
        self.inner.alltoall(send, receive)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """See `Communicator.broadcast`."""
        self.inner.broadcast(buffer, root)

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.reduce_sum`."""
        self.inner.reduce_sum(send, receive, root)

    def notify(self, notice: NDArray[np.int64]) -> None:
        """See `Communicator.notify`."""
        self.inner.notify(notice)

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """See `Communicator.notices`."""
        return self.inner.notices()

    def cancel(self) -> None:
        """See `Communicator.cancel`."""
        self.inner.cancel()

    def close(self) -> None:
        """See `Communicator.close`."""
        self.inner.close()

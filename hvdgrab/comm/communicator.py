"""What a communicator between ranks can do.

A communicator belongs to one communication thread a rank; every call blocks *that* thread, never the training loop, and every
rank must make the same calls in the same order.  Buffers are C-contiguous NumPy arrays; a call has read its send buffer and
filled its receive buffer when it returns, so that both may be changed afterwards.

Notices are the exception: any rank may send one at any time, and nobody waits for anybody.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[Any]


class Communicator(Protocol):
    """One rank's end of a group of ``size`` ranks.  Every call raises `CommunicatorClosed` once `cancel` was called."""

    @property
    def rank(self) -> int:
        """This process' number, 0 … size − 1."""

    @property
    def size(self) -> int:
        """Number of ranks (W)."""

    @property
    def waiting_for(self) -> list[int]:
        """Ranks whose part of the current call has not arrived yet, where that is known; read by other threads for messages."""

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """Bring every rank's ``send`` to ``receive`` (size, *send.shape) on ``root``; elsewhere ``receive`` is None."""

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """Bring every rank's ``send`` to ``receive`` (size, *send.shape) on every rank."""

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """Bring block ``send[j]`` to rank j, and every rank's block for this one to ``receive``; both (size, *block.shape)."""

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Overwrite ``buffer`` with the one of ``root``; shape and dtype must agree on all ranks."""

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """Add every rank's ``send`` elementwise into ``receive`` (same shape) on ``root``; elsewhere ``receive`` is None."""

    def notify(self, notice: NDArray[np.int64]) -> None:
        """Send a notice (k,) int64, a few numbers, to every other rank; waits for no receiver, and meets no collective call."""

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Sender and notice of all that have arrived since the last look, each sender's in order; waits for none."""

    def cancel(self) -> None:
        """Make calls that wait, and all later ones, raise `CommunicatorClosed`.  May be called from another thread."""

    def close(self) -> None:
        """Free what the communicator holds; idempotent.  Called by the communication thread after its last call."""


class SerialCommunicator:
    """A group of one: every collective is a copy."""

    rank = 0
    size = 1
    waiting_for: ClassVar[list[int]] = []

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:  # noqa: ARG002 - one rank is always the root
        """Copy ``send`` to ``receive[0]``."""
        if receive is not None:
            receive[0] = send

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """Copy ``send`` to ``receive[0]``."""
        receive[0] = send

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """Copy the only block."""
        receive[0] = send[0]

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Nothing to do."""

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:  # noqa: ARG002
        """Copy ``send`` to ``receive``."""
        if receive is not None:
            receive[...] = send

    def notify(self, notice: NDArray[np.int64]) -> None:
        """There is nobody to tell."""

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """There is nobody who could send one."""
        return []

    def cancel(self) -> None:
        """Nothing ever waits."""

    def close(self) -> None:
        """Nothing is held."""


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


def gather_bytes(communicator: Communicator, data: bytes, root: int = 0) -> list[bytes] | None:
    """Gather byte strings of different lengths; the list, in rank order, is on ``root`` only."""
    length = np.array([len(data)], dtype=np.int64)
    lengths = np.empty((communicator.size, 1), dtype=np.int64) if communicator.rank == root else None
    communicator.gather(length, lengths, root)
    longest = np.array([0 if lengths is None else lengths.max()], dtype=np.int64)
    communicator.broadcast(longest, root)
    padded = np.zeros(int(longest[0]), dtype=np.uint8)
    padded[: len(data)] = np.frombuffer(data, dtype=np.uint8)
    everyone = None if lengths is None else np.empty((communicator.size, padded.size), dtype=np.uint8)
    communicator.gather(padded, everyone, root)
    if lengths is None or everyone is None:
        return None
    return [everyone[rank, : int(lengths[rank, 0])].tobytes() for rank in range(communicator.size)]


def broadcast_bytes(communicator: Communicator, data: bytes | None, root: int = 0) -> bytes:
    """Give every rank the byte string of ``root`` (``data`` is ignored elsewhere)."""
    own = data if communicator.rank == root and data is not None else b""
    length = np.array([len(own)], dtype=np.int64)
    communicator.broadcast(length, root)
    buffer = np.zeros(int(length[0]), dtype=np.uint8)
    if communicator.rank == root:
        buffer[:] = np.frombuffer(own, dtype=np.uint8)
    communicator.broadcast(buffer, root)
    return buffer.tobytes()

"""The interface of communicators between ranks, and the simplest ones.

A communicator belongs to the communication thread of its rank; a call blocks that thread, never the training loop.  Every rank
must make the same calls in the same order.  Buffers are C-contiguous NumPy arrays; when a call returns, it has read its send
buffer and filled its receive buffer, so that both may be changed.

Notices are an exception: any rank may send one at any time, and no rank waits for one.
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
        """This process's number, 0 … size − 1."""

    @property
    def size(self) -> int:
        """Number of ranks (W)."""

    @property
    def waiting_for(self) -> list[int]:
        """Ranks whose part of the current call has not arrived, as far as is known; other threads read this for messages."""

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """Gather every rank's ``send`` into ``receive`` (size, *send.shape) on ``root``; on other ranks ``receive`` is None."""

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """Gather every rank's ``send`` into ``receive`` (size, *send.shape) on every rank."""

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """Send block ``send[j]`` to rank j, and receive every rank's block for this one; both (size, *block.shape)."""

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """Overwrite ``buffer`` with that of ``root``; shape and dtype must be equal on all ranks."""

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """Sum every rank's ``send`` elementwise into ``receive`` (same shape) on ``root``; on other ranks ``receive`` is None."""

    def notify(self, notice: NDArray[np.int64]) -> None:
        """Send a notice (k,) int64, a few numbers, to every other rank, without waiting for any of them."""

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Return sender and notice of all notices since the last call, each sender's in order, without waiting."""

    def cancel(self) -> None:
        """Make waiting and later calls raise `CommunicatorClosed`.  May be called from another thread."""

    def close(self) -> None:
        """Free the communicator's resources; idempotent.  The communication thread calls it last."""


class SerialCommunicator:
    """The communicator of a single rank: every collective call is a copy."""

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
        """Do nothing."""

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:  # noqa: ARG002
        """Copy ``send`` to ``receive``."""
        if receive is not None:
            receive[...] = send

    def notify(self, notice: NDArray[np.int64]) -> None:
        """Do nothing: there are no other ranks."""

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """Return no notices: there are no other ranks."""
        return []

    def cancel(self) -> None:
        """Do nothing: no call waits."""

    def close(self) -> None:
        """Do nothing: there are no resources."""


class ForwardingCommunicator:
    """Base of communicators that override some calls and forward the others to ``inner``."""

    def __init__(self, inner: Communicator) -> None:
        self.inner = inner
        """A communicator of the same ranks."""
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


def flattened(array: Buffer) -> Buffer:
    """View a buffer in one dimension.

    Raises:
        ValueError: it is not contiguous.
    """
    flat = array.reshape(-1)
    if not np.shares_memory(flat, array) and array.size:
        raise ValueError("a buffer on the wire must be contiguous")
    return flat


def gather_bytes(communicator: Communicator, data: bytes, root: int = 0) -> list[bytes] | None:
    """Gather byte strings of different lengths; returns the list in rank order on ``root``, None on other ranks."""
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
    """Return the byte string of ``root`` on every rank; ``data`` of other ranks is ignored."""
    own = data if communicator.rank == root and data is not None else b""
    length = np.array([len(own)], dtype=np.int64)
    communicator.broadcast(length, root)
    buffer = np.zeros(int(length[0]), dtype=np.uint8)
    if communicator.rank == root:
        buffer[:] = np.frombuffer(own, dtype=np.uint8)
    communicator.broadcast(buffer, root)
    return buffer.tobytes()

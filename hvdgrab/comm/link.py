"""Messages between the training ranks and a server that does not train; those of one sender to one receiver stay in order.

A link has W + 1 ends: those of the ranks 0 … W − 1, and end W of the server.  A message is a row of numbers and a body of bytes.
Every end belongs to one thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator, ForwardingCommunicator
from hvdgrab.comm.waiting import Waiting
from hvdgrab.errors import CommunicatorClosed

if TYPE_CHECKING:
    from mpi4py import MPI

ROW = 7
"""Length of a message's row."""
Row = NDArray[np.int64]
Body = NDArray[np.uint8]
EMPTY: Body = np.zeros(0, dtype=np.uint8)
_HEAD_TAG, _BODY_TAG = 1, 2
_CHUNK_BYTES = 2**30


class Message(NamedTuple):
    """A received message."""

    sender: int
    row: Row
    """(ROW,) int64."""
    body: Body
    """(bytes,) uint8."""


class Link(Protocol):
    """One end of a link.  Every call raises `CommunicatorClosed` after `cancel`."""

    @property
    def rank(self) -> int:
        """This end's number."""

    @property
    def server(self) -> int:
        """The server's number: the number of training ranks (W)."""

    def send(self, to: int, row: Row, body: Body = EMPTY) -> None:
        """Send a message; may wait until the receiver takes a large one.  Afterwards row and body may be changed."""

    def receive(self, sender: int | None = None) -> Message:
        """Wait for the next message of a sender, or of any."""

    def cancel(self) -> None:
        """Make waiting and later calls raise `CommunicatorClosed`.  May be called from another thread."""


class MPILink:
    """A link over its own MPI communicator, whose last rank is the server.

    Args:
        comm: used by this link alone.
        chunk_bytes: most bytes of one MPI message; equal at all ends.
    """

    def __init__(self, comm: MPI.Comm, chunk_bytes: int = _CHUNK_BYTES) -> None:
        from mpi4py import MPI

        self._mpi, self._comm, self._chunk = MPI, comm, chunk_bytes
        self.rank, self.server = comm.Get_rank(), comm.Get_size() - 1
        self._waiting = Waiting(self.rank, self._check_running)

    def send(self, to: int, row: Row, body: Body = EMPTY) -> None:
        """See `Link.send`."""
        self._waiting.begin()
        head = np.concatenate([row, [body.size]]).astype(np.int64)
        parts = [self._comm.Isend(part, to, _BODY_TAG) for part in self._chunks(body)]
        requests = [self._comm.Isend(head, to, _HEAD_TAG), *parts]
        self._waiting.until(lambda: bool(self._mpi.Request.Testall(requests)), "message", [to])

    def receive(self, sender: int | None = None) -> Message:
        """See `Link.receive`."""
        self._waiting.begin()
        status = self._mpi.Status()
        source = self._mpi.ANY_SOURCE if sender is None else sender
        self._waiting.until(lambda: bool(self._comm.Iprobe(source, _HEAD_TAG, status)), "message")
        head = np.empty(ROW + 1, dtype=np.int64)
        self._comm.Recv(head, status.source, _HEAD_TAG)
        body = np.empty(int(head[-1]), dtype=np.uint8)
        requests = [self._comm.Irecv(part, status.source, _BODY_TAG) for part in self._chunks(body)]
        self._waiting.until(lambda: bool(self._mpi.Request.Testall(requests)), "message")
        return Message(status.source, head[:-1], body)

    def cancel(self) -> None:
        """See `Link.cancel`."""
        self._waiting.cancel()

    def _chunks(self, body: Body) -> list[Body]:
        return [body[start : start + self._chunk] for start in range(0, body.size, self._chunk)]

    def _check_running(self) -> None:
        if self._mpi.Is_finalized():
            raise CommunicatorClosed(f"rank {self.rank}: the link to the server is closed")


class ServedCommunicator(ForwardingCommunicator):
    """The communicator between the training ranks, and their link to the server, which a session's `close` does not close.

    Args:
        ranks: the communicator between the training ranks.
        link: this rank's end.
    """

    def __init__(self, ranks: Communicator, link: Link) -> None:
        super().__init__(ranks)
        self.link = link

    def cancel(self) -> None:
        """See `Communicator.cancel`."""
        super().cancel()
        self.link.cancel()

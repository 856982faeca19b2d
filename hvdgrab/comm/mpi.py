"""The communicator over MPI: non-blocking calls, polled, on a duplicate of COMM_WORLD.

Open MPI makes no progress in the background, and its blocking calls burn a core while they wait.  So every call here starts a
non-blocking operation and tests it, sleeping a little longer each time, up to a millisecond.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer
from hvdgrab.errors import CommunicatorClosed

if TYPE_CHECKING:
    from mpi4py import MPI

CHUNK_ELEMENTS = 2**30
"""Elements in one MPI message: counts are C ints, so 2³¹ is out of reach."""

_GATHER_TAG, _NOTICE_TAG, _EXCHANGE_TAG = 1, 2, 3

_LEFT_BEHIND: list[Any] = []
"""Notices that were still on their way when their communicator was closed: MPI reads their buffers as long as it runs."""

_FIRST_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3


class MPICommunicator:
    """A duplicate of an MPI communicator, so that no message of hvdgrab can meet one of Horovod or of the script.

    Construction is collective.  Needs ``MPI.THREAD_MULTIPLE``; `hvdgrab.comm.world.check_world` refuses anything less.

    Args:
        parent: the communicator to duplicate, usually ``MPI.COMM_WORLD``.
        chunk_elements: largest number of array elements in one message.
    """

    def __init__(self, parent: MPI.Intracomm, chunk_elements: int = CHUNK_ELEMENTS) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._chunk = chunk_elements
        self._cancelled = threading.Event()
        self.rank = parent.Get_rank()
        self.size = parent.Get_size()
        self._comm: MPI.Intracomm | None = None
        self._unsent: list[tuple[MPI.Request, NDArray[np.int64]]] = []
        """Notices that may still be on their way out, with the buffers that MPI reads them from."""
        duplicate, request = parent.Idup()
        self.waiting_for: list[int] = []
        self._wait([request], "duplicating the communicator")
        self._comm = duplicate

    def gather(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.gather`: the root's receives go straight into the rows of ``receive``."""
        comm = self._open()
        if self.rank != root:
            self._wait([comm.Isend(part, dest=root, tag=_GATHER_TAG) for part in self._chunks(send)], "gather", root)
            return
        assert receive is not None
        receive[root] = send
        others = [rank for rank in range(self.size) if rank != root]
        parts = {rank: [comm.Irecv(part, rank, _GATHER_TAG) for part in self._chunks(receive[rank, ...])] for rank in others}
        for rank in others:  # all are on their way; this is only the order in which they are noticed
            self._wait(parts[rank], "gather", rank)

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.allgather`: every rank sends to every other."""
        self._exchange(dict.fromkeys(range(self.size), send), receive, "allgather")

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.alltoall`."""
        self._exchange({rank: send[rank, ...] for rank in range(self.size)}, receive, "alltoall")

    def _exchange(self, outgoing: dict[int, Buffer], receive: Buffer, what: str) -> None:
        """Send ``outgoing[rank]`` to every rank and fill the rows of ``receive``, next ranks first, to spread the load."""
        comm = self._open()
        others = [(self.rank + step) % self.size for step in range(1, self.size)]
        parts = [(part, rank) for rank in others for part in self._chunks(outgoing[rank])]
        incoming = {rank: [comm.Irecv(part, rank, _EXCHANGE_TAG) for part in self._chunks(receive[rank, ...])] for rank in others}
        sent = [comm.Isend(part, rank, _EXCHANGE_TAG) for part, rank in parts]
        receive[self.rank] = outgoing[self.rank]
        for rank in others:
            self._wait(incoming[rank], what, rank)
        self._wait(sent, what)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        """See `Communicator.broadcast`."""
        comm = self._open()
        self._wait([comm.Ibcast(part, root=root) for part in self._chunks(buffer)], "broadcast", root)

    def reduce_sum(self, send: Buffer, receive: Buffer | None, root: int) -> None:
        """See `Communicator.reduce_sum`."""
        comm = self._open()
        targets: list[Any] = [None] * len(self._chunks(send)) if receive is None else list(self._chunks(receive))
        parts = zip(self._chunks(send), targets, strict=True)
        self._wait([comm.Ireduce(part, target, op=self._mpi.SUM, root=root) for part, target in parts], "reduce")

    def notify(self, notice: NDArray[np.int64]) -> None:
        """See `Communicator.notify`."""
        comm = self._open()
        self._forget_sent()
        buffer = notice.copy()
        for rank in set(range(self.size)) - {self.rank}:
            self._unsent.append((comm.Isend(buffer, dest=rank, tag=_NOTICE_TAG), buffer))

    def notices(self) -> list[tuple[int, NDArray[np.int64]]]:
        """See `Communicator.notices`.  One thread alone receives here, so what was probed is what is received."""
        comm = self._open()
        self._forget_sent()
        arrived, status = [], self._mpi.Status()
        while comm.Iprobe(source=self._mpi.ANY_SOURCE, tag=_NOTICE_TAG, status=status):
            notice = np.empty(status.Get_count(self._mpi.INT64_T), dtype=np.int64)
            comm.Recv(notice, source=status.source, tag=_NOTICE_TAG)
            arrived.append((status.source, notice))
        return arrived

    def cancel(self) -> None:
        """See `Communicator.cancel`."""
        self._cancelled.set()

    def close(self) -> None:
        """Forget the duplicate.  It is not freed: that is collective, and other ranks may be gone."""
        self._cancelled.set()
        self._comm = None
        _LEFT_BEHIND.extend(self._unsent)

    def _open(self) -> MPI.Intracomm:
        if self._comm is None or self._cancelled.is_set():
            raise CommunicatorClosed(f"rank {self.rank}: the communicator is closed")
        self._check_running()
        return self._comm

    def _forget_sent(self) -> None:
        self._unsent = [(request, buffer) for request, buffer in self._unsent if not request.Test()]

    def _check_running(self) -> None:
        """A call after MPI's end would crash the process."""
        if self._mpi.Is_finalized():
            raise CommunicatorClosed(
                f"rank {self.rank}: MPI has ended together with Horovod: call optimizer.close() on every rank before "
                "hvd.shutdown()"
            )

    def _chunks(self, array: Buffer) -> list[Buffer]:
        flat = array.reshape(-1)
        if not np.shares_memory(flat, array) and array.size:
            raise ValueError("a buffer on the wire must be contiguous")
        return [flat[start : start + self._chunk] for start in range(0, max(flat.size, 1), self._chunk)]

    def _wait(self, requests: list[Any], what: str, peer: int | None = None) -> None:
        pause = _FIRST_SLEEP
        self.waiting_for = [] if peer is None else [peer]
        while not self._mpi.Request.Testall(requests):
            # MPI has no event to wait for: the test itself is what moves messages on.
            if self._cancelled.wait(pause):
                raise CommunicatorClosed(f"rank {self.rank}: closed while a {what} waited for other ranks")
            self._check_running()
            pause = min(2 * pause, _LONGEST_SLEEP)

"""The communicator over MPI: polled non-blocking operations on a duplicate of COMM_WORLD.

Open MPI makes no progress in the background, and its blocking calls use a full core while they wait.  Hence every call here
starts a non-blocking operation and polls it; see `hvdgrab.comm.waiting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Buffer, flattened
from hvdgrab.comm.waiting import Waiting
from hvdgrab.errors import CommunicatorClosed

if TYPE_CHECKING:
    from mpi4py import MPI

CHUNK_ELEMENTS = 2**30
"""Most elements in one MPI message: counts are C ints, below 2³¹."""

_GATHER_TAG, _NOTICE_TAG, _EXCHANGE_TAG, _NODES_TAG = 1, 2, 3, 4

_LEFT_BEHIND: list[Any] = []
"""Notices that were on their way when their communicator was closed: MPI may read their buffers until it ends."""


class MPICommunicator:
    """Communicates over a duplicate of an MPI communicator, so that messages never match those of Horovod or the script.

    Construction is collective.  Needs ``MPI.THREAD_MULTIPLE``, which `hvdgrab.comm.world.check_mpi` checks.

    Args:
        parent: the communicator to duplicate, usually ``MPI.COMM_WORLD``.
        chunk_elements: most array elements in one message.
    """

    def __init__(self, parent: MPI.Intracomm, chunk_elements: int = CHUNK_ELEMENTS) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._chunk = chunk_elements
        self.rank = parent.Get_rank()
        self.size = parent.Get_size()
        self.waiting = Waiting(self.rank, self._check_running)
        self._comm: MPI.Intracomm | None = None
        self._unsent: list[tuple[MPI.Request, NDArray[np.int64]]] = []
        """Notices that may still be on their way, with the buffers that MPI reads."""
        duplicate, request = parent.Idup()
        self._wait([request], "duplicating the communicator")
        self._comm = duplicate

    @property
    def waiting_for(self) -> list[int]:
        """See `Communicator.waiting_for`."""
        return self.waiting.peers

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
        for rank in others:  # all have started; this waits for them in the order of ranks
            self._wait(parts[rank], "gather", rank)

    def allgather(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.allgather`: every rank sends to every other."""
        self._exchange(dict.fromkeys(range(self.size), send), receive, "allgather")

    def alltoall(self, send: Buffer, receive: Buffer) -> None:
        """See `Communicator.alltoall`."""
        self._exchange({rank: send[rank, ...] for rank in range(self.size)}, receive, "alltoall")

    def _exchange(self, outgoing: dict[int, Buffer], receive: Buffer, what: str) -> None:
        """Send ``outgoing[rank]`` to every rank and receive into the rows of ``receive``, next ranks first to spread the load."""
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
        self.waiting.cancel()

    def close(self) -> None:
        """Drop the duplicate without freeing it: freeing is collective, and other ranks may be gone."""
        self.waiting.cancel()
        self._comm = None
        _LEFT_BEHIND.extend(self._unsent)

    def send(self, part: Buffer, rank: int) -> MPI.Request:
        """Start sending bytes to a rank, for the hierarchy; see `hvdgrab.comm.hierarchical.Transport`."""
        return self._open().Isend(part, rank, _NODES_TAG)

    def receive(self, part: Buffer, rank: int) -> MPI.Request:
        """Start receiving bytes from a rank; see `send`."""
        return self._open().Irecv(part, rank, _NODES_TAG)

    def progress(self) -> None:
        """Let MPI make progress, which it does only within calls."""
        self._open().Iprobe(self._mpi.ANY_SOURCE, _NODES_TAG)

    def group(self, color: int) -> MPI.Intracomm:
        """Make a communicator of the ranks with the same ``color``, in rank order; collective."""
        comm = self._open()
        self.barrier()
        return cast("MPI.Intracomm", comm.Split(color, self.rank))

    def sharing(self) -> int:
        """Find the smallest rank with which MPI lets this one share memory; collective."""
        comm = self._open()
        self.barrier()
        local = comm.Split_type(self._mpi.COMM_TYPE_SHARED, self.rank)
        first = np.array([self.rank], dtype=np.int64)
        local.Bcast(first, root=0)
        local.Free()
        return int(first[0])

    def barrier(self) -> None:
        """Wait for every rank, polling; use it before blocking MPI calls, which use a full core while they wait."""
        self._wait([self._open().Ibarrier()], "meeting")

    def _open(self) -> MPI.Intracomm:
        self.waiting.begin()
        if self._comm is None:
            raise CommunicatorClosed(f"rank {self.rank}: the communicator is closed")
        return self._comm

    def _forget_sent(self) -> None:
        self._unsent = [(request, buffer) for request, buffer in self._unsent if not request.Test()]

    def _check_running(self) -> None:
        """Raise if MPI has ended, because a call would then crash the process."""
        if self._mpi.Is_finalized():
            raise CommunicatorClosed(
                f"rank {self.rank}: MPI has ended together with Horovod: call optimizer.close() on every rank before "
                "hvd.shutdown()"
            )

    def _chunks(self, array: Buffer) -> list[Buffer]:
        flat = flattened(array)
        return [flat[start : start + self._chunk] for start in range(0, max(flat.size, 1), self._chunk)]

    def _wait(self, requests: list[Any], what: str, peer: int | None = None) -> None:
        # MPI offers no event to wait for, and makes progress only in the test
        self.waiting.until(lambda: bool(self._mpi.Request.Testall(requests)), what, [] if peer is None else [peer])

"""What every communicator must do, as functions of one rank's communicator; run by threads, by a single rank and by mpirun."""

from __future__ import annotations

import numpy as np

from hvdgrab.comm.communicator import Communicator, broadcast_bytes, gather_bytes


def gather_brings_rows_in_rank_order(comm: Communicator) -> None:
    for root in range(comm.size):
        for shape, dtype in (((1,), np.int64), ((3, 5), np.float32), ((0,), np.uint8)):
            send = np.full(shape, comm.rank + 1, dtype=dtype)
            receive = np.zeros((comm.size, *shape), dtype=dtype) if comm.rank == root else None
            comm.gather(send, receive, root)
            if receive is not None:
                assert all((receive[rank] == rank + 1).all() for rank in range(comm.size))


def gather_fills_rows_of_a_larger_buffer(comm: Communicator) -> None:
    """A partial message: the rows are contiguous, the whole is not."""
    send = np.arange(8, dtype=np.float32).reshape(2, 4) + comm.rank
    buffer = np.full((comm.size, 3, 4), -1, dtype=np.float32)
    comm.gather(send, buffer[:, :2] if comm.rank == 0 else None, 0)
    if comm.rank == 0:
        assert all((buffer[rank, :2] == np.arange(8).reshape(2, 4) + rank).all() for rank in range(comm.size))
        assert (buffer[:, 2] == -1).all()


def buffers_may_be_changed_after_a_call(comm: Communicator) -> None:
    send = np.full(4, comm.rank, dtype=np.int64)
    receive = np.zeros((comm.size, 4), dtype=np.int64) if comm.rank == 0 else None
    comm.gather(send, receive, 0)
    send[:] = -1
    comm.gather(send, np.zeros((comm.size, 4), dtype=np.int64) if comm.rank == 0 else None, 0)
    if receive is not None:
        assert (receive == np.arange(comm.size)[:, None]).all()


def broadcast_overwrites_all_but_the_root(comm: Communicator) -> None:
    for root in range(comm.size):
        buffer = np.arange(7, dtype=np.float32) * (1 if comm.rank == root else 0)
        comm.broadcast(buffer, root)
        assert (buffer == np.arange(7)).all()


def reduce_adds_elementwise(comm: Communicator) -> None:
    send = np.arange(6, dtype=np.float32).reshape(2, 3) * (comm.rank + 1)
    total = np.full((2, 3), 9, dtype=np.float32) if comm.rank == comm.size - 1 else None
    comm.reduce_sum(send, total, comm.size - 1)
    if total is not None:
        assert (total == np.arange(6).reshape(2, 3) * (comm.size * (comm.size + 1) // 2)).all()


def bytes_of_different_lengths_arrive(comm: Communicator) -> None:
    everyone = gather_bytes(comm, b"x" * comm.rank)
    assert (everyone is not None) == (comm.rank == 0)
    if everyone is not None:
        assert everyone == [b"x" * rank for rank in range(comm.size)]
    assert broadcast_bytes(comm, "größer".encode() if comm.rank == 0 else None) == "größer".encode()
    assert broadcast_bytes(comm, b"" if comm.rank == 0 else None) == b""


def many_calls_keep_their_order(comm: Communicator) -> None:
    for number in range(50):
        receive = np.zeros((comm.size, 2), dtype=np.int64) if comm.rank == number % comm.size else None
        comm.gather(np.array([number, comm.rank]), receive, number % comm.size)
        if receive is not None:
            assert (receive[:, 0] == number).all()


CHECKS = [
    gather_brings_rows_in_rank_order,
    gather_fills_rows_of_a_larger_buffer,
    buffers_may_be_changed_after_a_call,
    broadcast_overwrites_all_but_the_root,
    reduce_adds_elementwise,
    bytes_of_different_lengths_arrive,
    many_calls_keep_their_order,
]

"""What every communicator must do, as functions of one rank's communicator; run by threads, by a single rank and by mpirun."""

from __future__ import annotations

import time

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


def allgather_brings_rows_in_rank_order_to_all(comm: Communicator) -> None:
    for shape, dtype in (((1,), np.int64), ((3, 5), np.float32), ((2, 0), np.uint8), ((7,), np.uint8), ((), np.float64)):
        send = np.array(np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape) + dtype(comm.rank))
        receive = np.full((comm.size, *shape), 99, dtype=dtype)
        comm.allgather(send, receive)
        send += dtype(100)
        comm.allgather(send, np.empty_like(receive))
        for rank in range(comm.size):
            assert (receive[rank] == np.arange(send.size, dtype=dtype).reshape(shape) + dtype(rank)).all()


def allgather_fills_rows_of_a_larger_buffer(comm: Communicator) -> None:
    buffer = np.full((comm.size, 3, 4), -1, dtype=np.float32)
    comm.allgather(np.full((2, 4), comm.rank, dtype=np.float32), buffer[:, :2])
    assert (buffer[:, :2] == np.arange(comm.size)[:, None, None]).all()
    assert (buffer[:, 2] == -1).all()


def alltoall_brings_each_block_to_its_rank(comm: Communicator) -> None:
    for shape, dtype in (((1,), np.int64), ((3, 5), np.float32), ((2, 0), np.uint8), ((7,), np.uint8)):
        numbers = np.arange(comm.size, dtype=dtype).reshape(-1, *[1] * len(shape))
        send = np.broadcast_to(numbers + dtype(10 * comm.rank), (comm.size, *shape)).copy()
        receive = np.full((comm.size, *shape), 99, dtype=dtype)
        comm.alltoall(send, receive)
        send[...] = 77
        comm.alltoall(send, np.empty_like(receive))
        assert (receive == 10 * numbers + dtype(comm.rank)).all()


def exchanges_of_unequal_ranks_do_not_mix(comm: Communicator) -> None:
    """Ranks come to a call at different times; what a fast one sends for the next call is not taken for this one."""
    for number in range(20):
        if comm.rank == number % comm.size:
            time.sleep(0.002)
        row = np.array([number, comm.rank], dtype=np.int64)
        receive = np.empty((comm.size, 2), dtype=np.int64)
        comm.allgather(row, receive)
        assert receive.tolist() == [[number, rank] for rank in range(comm.size)]
        comm.alltoall(receive + 1000, receive_blocks := np.empty_like(receive))
        assert receive_blocks.tolist() == [[number + 1000, comm.rank + 1000]] * comm.size


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


def collected_notices(comm: Communicator, expected: int) -> dict[int, list[list[int]]]:
    """Notices by sender, once every rank has ``expected``; collective calls in between give them the time to arrive."""
    heard: dict[int, list[list[int]]] = {rank: [] for rank in range(comm.size) if rank != comm.rank}
    for _ in range(10_000):
        for sender, notice in comm.notices():
            assert notice.dtype == np.int64
            heard[sender].append(notice.tolist())
        missing = np.zeros(1, dtype=np.int64)
        comm.reduce_sum(np.array([expected - sum(map(len, heard.values()))]), missing if comm.rank == 0 else None, 0)
        comm.broadcast(missing, 0)
        if missing[0] <= 0:
            return heard
    raise AssertionError(f"rank {comm.rank} misses notices: {heard}")


def notices_arrive_once_and_in_the_order_of_their_sender(comm: Communicator) -> None:
    assert not any(collected_notices(comm, 0).values()), "none was sent, and nobody waits for one"
    notice = np.zeros(3, dtype=np.int64)
    for number in range(20):
        notice[:] = comm.rank, number, -(2**40)
        comm.notify(notice)  # and may be changed at once
    for sender, rows in collected_notices(comm, 20 * (comm.size - 1)).items():
        assert rows == [[sender, number, -(2**40)] for number in range(20)]
    assert not any(collected_notices(comm, 0).values())


def notices_do_not_meet_collective_calls(comm: Communicator) -> None:
    """They are of the size of what is gathered, and arrive before it, unread."""
    for root in range(comm.size):
        comm.notify(np.array([-1], dtype=np.int64))
        gather_brings_rows_in_rank_order(comm)
        comm.notify(np.array([-2], dtype=np.int64))
        receive = np.zeros((comm.size, 1), dtype=np.int64) if comm.rank == root else None
        comm.gather(np.array([comm.rank]), receive, root)
        assert receive is None or receive[:, 0].tolist() == list(range(comm.size))
        broadcast_overwrites_all_but_the_root(comm)
    for rows in collected_notices(comm, 2 * comm.size * (comm.size - 1)).values():
        assert rows == [[-1], [-2]] * comm.size


def notices_wait_for_no_receiver(comm: Communicator) -> None:
    """One rank sends many, while the others are in a call that waits for it."""
    last = comm.size - 1
    if comm.rank == last:
        for number in range(500):
            comm.notify(np.array([number], dtype=np.int64))
    comm.broadcast(np.zeros(1), last)
    mine = 0 if comm.rank == last else 500
    assert collected_notices(comm, mine).get(last, []) == [[number] for number in range(mine)]


CHECKS = [
    gather_brings_rows_in_rank_order,
    gather_fills_rows_of_a_larger_buffer,
    buffers_may_be_changed_after_a_call,
    broadcast_overwrites_all_but_the_root,
    reduce_adds_elementwise,
    allgather_brings_rows_in_rank_order_to_all,
    allgather_fills_rows_of_a_larger_buffer,
    alltoall_brings_each_block_to_its_rank,
    exchanges_of_unequal_ranks_do_not_mix,
    bytes_of_different_lengths_arrive,
    many_calls_keep_their_order,
    notices_arrive_once_and_in_the_order_of_their_sender,
    notices_do_not_meet_collective_calls,
    notices_wait_for_no_receiver,
]

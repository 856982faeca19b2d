"""What ranks send each other to order an epoch: headers, which must be the same on all ranks, and signs.

A header travels before its payload: kind, epoch, number, and the rank's position.  Headers that differ end the job and name the
ranks, since ranks that disagree about the epoch would go on training in orders that nobody intended.  A sign takes one bit; an
epoch with pairs that nobody saw (sign 0) takes a second plane of bits.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator
from hvdgrab.errors import ConsistencyError

Signs = NDArray[np.int8]
Bits = NDArray[np.uint8]
FIELDS = ("kind", "epoch", "message", "pair", "pairs", "unit")


class Kind(enum.IntEnum):
    """The kinds of message, as they stand in a header."""

    PAIRS = 1
    """Differences of some pairs follow."""
    END = 2
    """The rank has seen the last unit of its epoch, or has left it early."""


@dataclass(frozen=True)
class Header:
    """The part of a message that must be the same on all ranks."""

    kind: Kind
    epoch: int
    message: int
    """Number of the message within the epoch."""
    pair: int
    """First pair of the message; for END the number of pairs of the epoch."""
    pairs: int
    """Pairs in the message."""
    unit: int
    """Units that the rank has seen in this epoch."""

    def row(self) -> NDArray[np.int64]:
        """(6,) int64, in the order of the fields."""
        return np.array([getattr(self, name) for name in FIELDS], dtype=np.int64)

    @classmethod
    def of(cls, row: NDArray[np.int64]) -> Header:
        """The header of a `row`."""
        kind, *rest = row[: len(FIELDS)].tolist()
        return cls(Kind(kind), *rest)


@dataclass(frozen=True)
class PairMessage:
    """Pair differences of one rank."""

    header: Header
    differences: NDArray[np.float32]
    """(pairs, d) float32."""
    seen: NDArray[np.int8]
    """(pairs,) int8: 0 where one of the pair's two units had no backward pass of its own."""


def gather_headers(
    communicator: Communicator, header: Header, extra: NDArray[np.int64], root: int, room: int
) -> NDArray[np.int64] | None:
    """Gather headers and ``extra`` (k,) int64 on ``root``, compare the headers there, return (W, k): all ranks' extras.

    All headers of a run have ``room`` >= k places for extras, so that ranks whose messages are of different kinds still meet in
    one call and can be told apart.

    Raises:
        ConsistencyError: the headers differ; on ``root`` only, the others learn of it when the job ends.
    """
    row = _with_extra(header, extra, room)
    rows = np.empty((communicator.size, row.size), dtype=np.int64) if communicator.rank == root else None
    communicator.gather(row, rows, root)
    if rows is None:
        return None
    compare_headers(rows)
    return rows[:, len(FIELDS) : len(FIELDS) + extra.size]


def share_headers(communicator: Communicator, header: Header, extra: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """As `gather_headers`, on every rank.

    Raises:
        ConsistencyError: the headers differ; on every rank.
    """
    row = _with_extra(header, extra, room)
    rows = np.empty((communicator.size, row.size), dtype=np.int64)
    communicator.allgather(row, rows)
    compare_headers(rows)
    return rows[:, len(FIELDS) : len(FIELDS) + extra.size]


def compare_headers(rows: NDArray[np.int64]) -> None:
    """Make sure that the first columns of ``rows`` (W, at least 6), all ranks' headers, are the same.

    Raises:
        ConsistencyError: they are not; tells where every rank is.
    """
    heads = rows[:, : len(FIELDS)]
    if (heads != heads[0]).any():
        places = [describe(rank, kind, epoch, unit) for rank, (kind, epoch, _, _, _, unit) in enumerate(heads.tolist())]
        raise ConsistencyError(disagreement(places))


def _with_extra(header: Header, extra: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    return np.concatenate([header.row(), extra, np.zeros(room - extra.size, dtype=np.int64)])


def describe(rank: int, kind: int, epoch: int, unit: int) -> str:
    """Where a rank is, for `disagreement`; ``kind`` of its message, ``unit``: how many it has seen in the epoch."""
    return f"rank {rank} {'ended' if kind == Kind.END else 'is in'} epoch {epoch} after unit {unit}"


def disagreement(places: Iterable[str]) -> str:
    """Explain that ranks are at different places, and what to do."""
    return (
        f"the ranks are not at the same place: {'; '.join(places)}. Every rank must make the same number of backward passes in "
        "an epoch; a rank that looks at batches on its own, or leaves the loop alone, needs a DataLoader with a sampler of "
        "its own for that"
    )


def pack_signs(signs: Signs, dropped: NDArray[np.int64]) -> Bits:
    """``signs`` (W, pairs) int8 and ``dropped`` (W,) int64 as one body of bytes."""
    return np.concatenate([dropped.view(np.uint8), *_planes(signs)])


def unpack_signs(body: Bits, shape: tuple[int, ...]) -> tuple[Signs, NDArray[np.int64]]:
    """The arrays that `pack_signs` was given; ``shape`` of the signs, (W, pairs)."""
    places = 8 * shape[0]
    length = _length(shape)
    planes = body[places:].reshape(-1, length) if length else [np.zeros(0, dtype=np.uint8)]
    return _signs(list(planes), shape), body[:places].copy().view(np.int64)


def share_signs(
    communicator: Communicator, signs: Signs | None, dropped: NDArray[np.int64] | None, shape: tuple[int, ...], root: int
) -> tuple[Signs, NDArray[np.int64]]:
    """Broadcast ``signs`` (W, pairs) int8 and ``dropped`` (W,) int64 of ``root``; None elsewhere.

    Returns:
        New arrays, the same on all ranks.
    """
    summary = np.zeros(1 + shape[0], dtype=np.int64)
    planes: list[Bits] = []
    if signs is not None and dropped is not None:
        planes = _planes(signs)
        summary[0], summary[1:] = len(planes), dropped
    communicator.broadcast(summary, root)
    planes = planes or [np.zeros(_length(shape), dtype=np.uint8) for _ in range(summary[0])]
    for plane in planes:
        communicator.broadcast(plane, root)
    return _signs(planes, shape), summary[1:]


def _planes(signs: Signs) -> list[Bits]:
    return [np.packbits(signs > 0)] + ([np.packbits(signs != 0)] if (signs == 0).any() else [])


def _signs(planes: Sequence[Bits], shape: tuple[int, ...]) -> Signs:
    bits = [np.unpackbits(plane, count=int(np.prod(shape))).astype(bool).reshape(shape) for plane in planes]
    signs = np.where(bits[0], 1, -1).astype(np.int8)
    return signs * bits[-1] if len(bits) > 1 else signs


def _length(shape: tuple[int, ...]) -> int:
    """Bytes of a plane."""
    return -(-int(np.prod(shape)) // 8)

"""What ranks send each other to order an epoch, and the check that they all send the same kind of thing.

Before a payload travels, its header does: kind, epoch, number, and the rank's position.  Headers that differ end the job with
the ranks named, since ranks that disagree about the epoch would go on training in orders that nobody intended.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator
from hvdgrab.errors import ConsistencyError

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

    All headers of a run have ``room`` >= k places for extras: ranks whose messages are of different kinds must meet in one
    call to be told apart.

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
        ConsistencyError: they are not; says where every rank is.
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
    """What is wrong where ranks are at different places, and what to do."""
    return (
        f"the ranks are not at the same place: {'; '.join(places)}. Every rank must make the same number of backward passes in "
        "an epoch; a rank that looks at batches on its own, or leaves the loop alone, needs a DataLoader with a sampler of "
        "its own for that"
    )

"""Signs on the wire: one bit a pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator

Signs = NDArray[np.int8]


def share_signs(
    communicator: Communicator, signs: Signs | None, dropped: NDArray[np.int64] | None, shape: tuple[int, ...], root: int
) -> tuple[Signs, NDArray[np.int64]]:
    """Broadcast ``signs`` (W, pairs) int8 and ``dropped`` (W,) int64 of ``root``; None elsewhere.

    A sign is one bit.  A second plane of bits follows only in an epoch that has pairs nobody saw (sign 0).

    Returns:
        New arrays, the same on all ranks.
    """
    summary = np.zeros(1 + shape[0], dtype=np.int64)
    if signs is not None and dropped is not None:
        summary[0], summary[1:] = (signs == 0).any(), dropped
    communicator.broadcast(summary, root)
    positive = _share_bits(communicator, None if signs is None else signs > 0, shape, root)
    result = np.where(positive, 1, -1).astype(np.int8)
    if summary[0]:
        result *= _share_bits(communicator, None if signs is None else signs != 0, shape, root)
    return result, summary[1:]


def _share_bits(
    communicator: Communicator, bits: NDArray[np.bool_] | None, shape: tuple[int, ...], root: int
) -> NDArray[np.bool_]:
    count = int(np.prod(shape))
    packed = np.packbits(bits) if bits is not None else np.zeros(-(-count // 8), dtype=np.uint8)
    communicator.broadcast(packed, root)
    return np.unpackbits(packed, count=count).astype(bool).reshape(shape)

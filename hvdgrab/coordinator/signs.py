"""Signs on the wire: one bit a pair; a second plane of bits only in an epoch that has pairs nobody saw (sign 0)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hvdgrab.comm.communicator import Communicator

Signs = NDArray[np.int8]
Bits = NDArray[np.uint8]


def pack_signs(signs: Signs, dropped: NDArray[np.int64]) -> Bits:
    """``signs`` (W, pairs) int8 and ``dropped`` (W,) int64 as one body of bytes."""
    return np.concatenate([dropped.view(np.uint8), *_planes(signs)])


def unpack_signs(body: Bits, shape: tuple[int, ...]) -> tuple[Signs, NDArray[np.int64]]:
    """What `pack_signs` was given; ``shape`` of the signs, (W, pairs)."""
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

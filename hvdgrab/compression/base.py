"""The interface of every compressor of pair differences: `Compressor` and its `Info` record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.compression.payload import Payload

if TYPE_CHECKING:
    from hvdgrab.compression.fold import FoldSketch


@dataclass(frozen=True)
class Info:
    """Facts about a compressor; equal on all ranks of a run."""

    kind: str
    """Its name in `hvdgrab.compression.build_compressor`."""
    linear: bool
    """Whether expand(compress(a)) - expand(compress(b)) equals expand(compress(a - b)) up to rounding in float32."""
    lossless: bool
    """Whether expand(compress(a)) equals a, bit for bit."""
    options: tuple[tuple[str, Any], ...] = ()
    """Its options, defaults included: (name, value) sorted by name."""


@runtime_checkable
class Compressor(Protocol):
    """Turns a pair difference into a payload of a size known in advance, and back into what PairBalance sees.

    Neither direction keeps a reference to its input, which the caller may change at once.  NaN and infinities expand to
    non-finite values, finite values to finite ones.
    """

    @property
    def info(self) -> Info:
        """Facts about this compressor."""

    @property
    def projection(self) -> FoldSketch | None:
        """The linear map (d,) -> (width(d),) that is applied before encoding, or None."""

    def width(self, d: int) -> int:
        """Length of the vector that a difference of d values expands to."""

    def wire_bytes(self, d: int) -> int:
        """Bytes of the payload of any difference of d values."""

    def compress(self, difference: torch.Tensor, out: NDArray[np.uint8] | None = None) -> Payload:
        """Compress one difference: `encode` its projection, or itself if there is no projection.

        Args:
            difference: (d,) floating point, on any device; read only.
            out: (wire_bytes(d),) uint8, contiguous, receives the payload; new memory by default.

        Raises:
            UsageError: wrong shape or dtype.
        """

    def encode(self, vector: torch.Tensor | NDArray[np.float32], out: NDArray[np.uint8] | None = None) -> Payload:
        """Compress a vector that has been projected already (streamed, summed piece by piece): the second half of `compress`.

        Args:
            vector: (width(d),) float32; read only.
            out: as in `compress`.

        Raises:
            UsageError: wrong shape or dtype.
        """

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        """Expand a payload to what PairBalance sees of a difference.

        Args:
            payload: from `compress`, or its bytes at any address.
            out: (width(d),) float32 on the host, any strides, receives the result; new memory by default.

        Returns:
            (width(d),) float32 on the host.

        Raises:
            PayloadError: the payload is foreign, truncated, damaged, of another version, kind or shape, or not of `out`'s length;
                the message tells which.
            UsageError: `out` fits no payload of this compressor.
        """

    def expand_many(self, payloads: NDArray[np.uint8], out: torch.Tensor) -> None:
        """Expand several payloads at once, which is faster for short ones.  `out` is written only if all are valid.

        Args:
            payloads: (m, wire_bytes(d)) uint8, each row contiguous.
            out: (m, width(d)) float32 on the host, any strides.

        Raises:
            PayloadError: as for `expand`; the message begins with ``row i:``.
            UsageError: wrong shapes.
        """

    def tolerance(self, difference: torch.Tensor) -> NDArray[np.float64]:
        """Bound the distance of each value of expand(compress(difference)) from the projection, or the difference, itself.

        Args:
            difference: (d,) floating point, finite.

        Returns:
            (width(d),) float64.
        """

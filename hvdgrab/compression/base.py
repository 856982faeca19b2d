"""What every compressor of pair differences offers: `Compressor` and its `Info` record."""

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
    """What a compressor is; equal on all ranks of a run."""

    kind: str
    """Its name in `hvdgrab.compression.build_compressor`."""
    linear: bool
    """Whether expand(compress(a)) - expand(compress(b)) equals expand(compress(a - b)) up to rounding in float32."""
    lossless: bool
    """Whether expand(compress(a)) equals a, bit for bit."""
    options: tuple[tuple[str, Any], ...] = ()
    """The options it was built with, defaults included: (name, value) sorted by name."""


@runtime_checkable
class Compressor(Protocol):
    """Turns a pair difference into a payload whose size is known beforehand, and back into what PairBalance sees.

    Neither direction keeps a reference to what it was given: the caller may change or reuse it at once.  NaN and infinities
    expand to non-finite values, finite values to finite ones.
    """

    @property
    def info(self) -> Info:
        """What this compressor is."""

    @property
    def projection(self) -> FoldSketch | None:
        """The linear map (d,) -> (width(d),) that comes before encoding, or None: a sum of its images is the image of a sum."""

    def width(self, d: int) -> int:
        """Length of the expanded vector of a difference of d values."""

    def wire_bytes(self, d: int) -> int:
        """Bytes of the payload of a difference of d values, known before compressing, the same for all of them."""

    def compress(self, difference: torch.Tensor, out: NDArray[np.uint8] | None = None) -> Payload:
        """Compress one difference: `encode` of its projection, or of itself where there is none.

        Args:
            difference: (d,) floating point, on any device; read only.
            out: (wire_bytes(d),) uint8, contiguous: memory for the payload; new memory by default.

        Raises:
            UsageError: another shape or dtype.
        """

    def encode(self, vector: torch.Tensor | NDArray[np.float32], out: NDArray[np.uint8] | None = None) -> Payload:
        """The second half of `compress`, for vectors that are projected already (streamed, summed piece by piece).

        Args:
            vector: (width(d),) float32; read only.
            out: as in `compress`.

        Raises:
            UsageError: another shape or dtype.
        """

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        """What PairBalance sees of a difference.

        Args:
            payload: from `compress`, or the bytes of one, at any address.
            out: (width(d),) float32 on the host, any strides: memory for the result; new memory by default.

        Returns:
            (width(d),) float32 on the host.

        Raises:
            PayloadError: foreign, truncated, damaged, of another version, kind or shape, or not of `out`'s length; says which.
            UsageError: `out` cannot hold any payload of this compressor.
        """

    def expand_many(self, payloads: NDArray[np.uint8], out: torch.Tensor) -> None:
        """`expand` of several payloads at once, which is faster for short ones.  `out` is written only where all are sound.

        Args:
            payloads: (m, wire_bytes(d)) uint8, each row contiguous.
            out: (m, width(d)) float32 on the host, any strides.

        Raises:
            PayloadError: as `expand`; the message begins with ``row i:``.
            UsageError: wrong shapes.
        """

    def tolerance(self, difference: torch.Tensor) -> NDArray[np.float64]:
        """How far each value of expand(compress(difference)) may be from the projection, or the difference, itself.

        Args:
            difference: (d,) floating point, finite.

        Returns:
            (width(d),) float64.
        """

"""What every compressor of pair differences offers: `Compressor`, its `Info` record, and the `Payload` that travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class Info:
    """What a compressor is; equal on all ranks of a run."""

    kind: str
    """Its name in `hvdgrab.compression.build_compressor`."""
    linear: bool
    """Whether expand(compress(a)) - expand(compress(b)) equals expand(compress(a - b)) up to rounding."""
    lossless: bool
    """Whether expand(compress(a)) equals a, bit for bit."""
    options: tuple[tuple[str, Any], ...] = ()
    """The options it was built with, defaults included: (name, value) sorted by name."""


@dataclass(frozen=True, eq=False)
class Payload:
    """One compressed difference, as it goes on the wire."""

    data: NDArray[np.uint8]
    """(nbytes,) uint8, contiguous, in host memory."""

    @property
    def nbytes(self) -> int:
        """Its size on the wire in bytes."""
        return self.data.nbytes


@runtime_checkable
class Compressor(Protocol):
    """Turns a pair difference into a payload whose size is known beforehand, and back into what PairBalance sees.

    Neither direction keeps a reference to what it was given: the caller may change or reuse it at once.
    """

    @property
    def info(self) -> Info:
        """What this compressor is."""

    def width(self, d: int) -> int:
        """Length of the expanded vector of a difference of d values."""

    def wire_bytes(self, d: int) -> int:
        """Bytes of the payload of a difference of d values, known before compressing, the same for all of them."""

    def compress(self, difference: torch.Tensor, out: NDArray[np.uint8] | None = None) -> Payload:
        """Compress one difference.

        Args:
            difference: (d,) floating point, on any device; read only.
            out: (wire_bytes(d),) uint8, contiguous: memory for the payload; new memory by default.

        Raises:
            UsageError: another shape or dtype.
        """

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        """What PairBalance sees of a difference.

        Args:
            payload: from `compress`, or the bytes of one.
            out: (width(d),) float32 on the host, any strides: memory for the result; new memory by default.

        Returns:
            (width(d),) float32 on the host.

        Raises:
            UsageError: the payload or `out` has another size.
        """

"""``topk``: the largest values of a difference with their places; the values go through an encoder."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvdgrab.compression.coded import Coded
from hvdgrab.compression.encoders import Bytes, Floats, encoder_of
from hvdgrab.compression.registry import register
from hvdgrab.compression.selection import largest
from hvdgrab.errors import ConfigError, PayloadError, UsageError

RATIO = 0.01
DTYPES = ("fp16", "fp32")
LARGEST_D = 2**31 - 1
"""Values of the longest vector: places travel as int32."""


@register("topk")
class TopK(Coded):
    """Sends the k largest magnitudes, exactly k of them: their places as int32, ascending, then their values.

    Of equal magnitudes the first ones are kept.  A NaN or an infinity counts as largest, hence always travels.

    Args:
        ratio: the share of the values that travels, k = ratio·d to the nearest whole number and at least 1.
        k: their number instead; all where the vector has fewer.
        dtype: how a value travels: ``fp16`` or ``fp32``.

    Raises:
        ConfigError: both ratio and k, one out of range, or a dtype that there is not.
    """

    def __init__(self, ratio: float | None = None, k: int | None = None, dtype: str = "fp16") -> None:
        if ratio is not None and k is not None:
            raise ConfigError("topk takes either ratio or k, not both")
        if ratio is None and k is None:
            ratio = RATIO
        if ratio is not None and not 0 < ratio <= 1:
            raise ConfigError(f"the ratio of topk must lie in 0 … 1 and not be 0; it is {ratio}")
        if k is not None and k < 1:
            raise ConfigError(f"the k of topk must be at least 1, not {k}")
        encoder = encoder_of(dtype, DTYPES, "topk")
        super().__init__("topk", encoder, linear=False, lossless=False, ratio=ratio, k=k, dtype=dtype)
        self._ratio, self._k = ratio, k

    def wire_bytes(self, d: int) -> int:
        """Header, 4 bytes a place, and what the encoder makes of k values.

        Raises:
            UsageError: a vector that 32-bit places cannot address.
        """
        if d > LARGEST_D:
            raise UsageError(f"topk has 32-bit places and cannot address {d} values; use kind 'sketch', which has no places")
        return super().wire_bytes(d)

    def _most(self) -> int:
        return LARGEST_D

    def _carried(self, d: int) -> int:
        return min(d, max(1, round(self._ratio * d)) if self._ratio is not None else self._k or 0)

    def _body_bytes(self, d: int) -> int:
        k = self._carried(d)
        return 4 * k + self._encoder.nbytes(k)

    def _write(self, values: Floats, body: Bytes) -> None:
        self.wire_bytes(len(values))  # refuses what it cannot address
        k = self._carried(len(values))
        places = largest(values, k)
        np.copyto(body[: 4 * k].view(np.int32), places, casting="same_kind")
        self._encoder.encode(values[places], body[4 * k :])

    def _read(self, bodies: Bytes, out: Floats) -> None:
        m, d = out.shape
        k = self._carried(d)
        places, values = bodies[:, : 4 * k].view(np.int32), np.empty((m, k), dtype=np.float32)
        if k and (places.min() < 0 or places.max() >= d):
            raise PayloadError(f"a damaged payload: it names places outside of 0 … {d - 1}")
        self._encoder.decode(bodies[:, 4 * k :], values)
        out[...] = 0
        out[np.arange(m)[:, None], places] = values

    def _tolerance(self, values: Floats) -> NDArray[np.float64]:
        allowed = np.abs(values.astype(np.float64))
        places = largest(values, self._carried(len(values)))
        allowed[places] = self._encoder.tolerance(values[places])
        return allowed

"""No compression: the difference itself in float32, 4 bytes a value."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.compression.base import Info, Payload
from hvdgrab.compression.registry import register
from hvdgrab.errors import UsageError


@register("none")
class Dense:
    """Sends every value as float32 (4·d bytes); PairBalance sees the difference itself."""

    info = Info(kind="none", linear=True, lossless=True)

    def width(self, d: int) -> int:
        """d."""
        return d

    def wire_bytes(self, d: int) -> int:
        """4·d."""
        return 4 * d

    def compress(self, difference: torch.Tensor, out: NDArray[np.uint8] | None = None) -> Payload:
        """The values as float32 bytes; see `hvdgrab.compression.base.Compressor.compress`."""
        if difference.ndim != 1 or not difference.is_floating_point():
            raise UsageError(f"a difference is a floating-point (d,), not {difference.dtype} of shape {tuple(difference.shape)}")
        size = self.wire_bytes(difference.numel())
        data = np.empty(size, dtype=np.uint8) if out is None else out
        if data.shape != (size,) or data.dtype != np.uint8 or not data.flags.c_contiguous:
            raise UsageError(f"the payload needs {size} contiguous bytes, not {data.dtype} of shape {data.shape}")
        np.copyto(data.view(np.float32), difference.detach().to("cpu", torch.float32).numpy())
        return Payload(data)

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        """The bytes as float32 values; see `hvdgrab.compression.base.Compressor.expand`."""
        if payload.nbytes % 4:
            raise UsageError(f"a payload of {payload.nbytes} bytes holds no whole number of float32 values")
        values = payload.data.view(np.float32)
        result = torch.empty(len(values), dtype=torch.float32) if out is None else out
        if result.shape != values.shape or result.dtype != torch.float32 or result.device.type != "cpu":
            raise UsageError(
                f"the result has {len(values)} float32 values on the host, "
                f"not {result.dtype} of shape {tuple(result.shape)} on {result.device}"
            )
        np.copyto(result.numpy(), values)
        return result

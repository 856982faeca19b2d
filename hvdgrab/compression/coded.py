"""Base of all compressors: project a vector if there is a projection, encode its values, and seal the payload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.compression.base import Info
from hvdgrab.compression.encoders import Bytes, Encoder, Floats
from hvdgrab.compression.payload import HEADER_BYTES, Envelope, Payload, length
from hvdgrab.errors import UsageError

if TYPE_CHECKING:
    from hvdgrab.compression.fold import FoldSketch


class Coded:
    """A compressor that sends every value of its vector through one encoder; subclasses override what they do differently.

    `hvdgrab.compression.base.Compressor` documents the public methods.
    """

    projection: FoldSketch | None = None

    def __init__(self, kind: str, encoder: Encoder, *, linear: bool, lossless: bool, **options: Any) -> None:
        self._info = Info(kind=kind, linear=linear, lossless=lossless, options=tuple(sorted(options.items())))
        self._encoder = encoder
        self._latest: Envelope | None = None

    @property
    def info(self) -> Info:
        """See `hvdgrab.compression.base.Compressor.info`."""
        return self._info

    def width(self, d: int) -> int:
        """See `hvdgrab.compression.base.Compressor.width`; d."""
        return d

    def wire_bytes(self, d: int) -> int:
        """See `hvdgrab.compression.base.Compressor.wire_bytes`: the header and the encoded values."""
        return HEADER_BYTES + self._body_bytes(self.width(d))

    def compress(self, difference: torch.Tensor, out: Bytes | None = None) -> Payload:
        """See `hvdgrab.compression.base.Compressor.compress`."""
        return self.encode(self._projected(difference), out)

    def encode(self, vector: torch.Tensor | Floats, out: Bytes | None = None) -> Payload:
        """See `hvdgrab.compression.base.Compressor.encode`."""
        values = _on_host(vector)
        if values.ndim != 1 or (self.projection is not None and len(values) != self.projection.width):
            wanted = "(d,)" if self.projection is None else f"({self.projection.width},)"
            raise UsageError(f"encode takes a floating-point {wanted}, not {values.shape}")
        envelope = self._envelope(len(values))
        data = np.empty(envelope.nbytes, dtype=np.uint8) if out is None else out
        if data.shape != (envelope.nbytes,) or data.dtype != np.uint8 or not data.flags.c_contiguous:
            raise UsageError(f"the payload needs {envelope.nbytes} contiguous bytes, not {data.dtype} of shape {data.shape}")
        self._write(values, data[HEADER_BYTES:])
        envelope.seal(data)
        return Payload(data)

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `hvdgrab.compression.base.Compressor.expand`."""
        data = payload.data
        envelope = self._expected(data, None if out is None else out.numel())
        envelope.check(data)
        result = torch.empty(envelope.d, dtype=torch.float32) if out is None else _checked(out, (envelope.d,))
        self._read(data[None, HEADER_BYTES:], result.numpy()[None])
        return result

    def expand_many(self, payloads: Bytes, out: torch.Tensor) -> None:
        """See `hvdgrab.compression.base.Compressor.expand_many`."""
        if payloads.ndim != 2 or payloads.dtype != np.uint8 or (payloads.size and payloads.strides[1] != 1):
            raise UsageError(f"payloads are (m, wire) uint8 with contiguous rows, not {payloads.dtype} of shape {payloads.shape}")
        if not len(payloads):
            return
        envelope = self._expected(payloads[0], out.shape[-1])
        for row, data in enumerate(payloads):
            envelope.check(data, f"row {row}: ")
        _checked(out, (len(payloads), envelope.d))
        self._read(payloads[:, HEADER_BYTES:], out.numpy())

    def tolerance(self, difference: torch.Tensor) -> NDArray[np.float64]:
        """See `hvdgrab.compression.base.Compressor.tolerance`."""
        return self._tolerance(_on_host(self._projected(difference)))

    def _projected(self, difference: torch.Tensor) -> torch.Tensor:
        if difference.ndim != 1 or not difference.is_floating_point():
            raise UsageError(f"a difference is a floating-point (d,), not {difference.dtype} of shape {tuple(difference.shape)}")
        return difference if self.projection is None else self.projection.fold(difference)

    def _expected(self, data: Bytes, room: int | None) -> Envelope:
        """The header that a payload must have; its length is taken from the payload if nothing else gives it."""
        d = self.projection.width if self.projection is not None else length(data) if room is None else room
        if room is not None and room != d:
            raise UsageError(f"the result has {d} float32 values, not {room}")
        return self._envelope(min(d, self._most()))

    def _envelope(self, d: int) -> Envelope:
        latest = self._latest
        if latest is None or latest.d != d:
            made = self._encoder
            latest = Envelope(self.info.kind, made.dtype, made.block, d, self._carried(d), self._body_bytes(d))
            self._latest = latest
        return latest

    def _most(self) -> int:
        """Values of the longest vector that a payload can hold."""
        return 2**64 - 1

    def _carried(self, d: int) -> int:
        """How many of d values are sent."""
        return d

    def _body_bytes(self, d: int) -> int:
        """Bytes after the header for a vector of d values."""
        return self._encoder.nbytes(d)

    def _write(self, values: Floats, body: Bytes) -> None:
        self._encoder.encode(values, body)

    def _read(self, bodies: Bytes, out: Floats) -> None:
        """Decode `bodies` (m, bytes), one row a payload, to the rows of `out` (m, d)."""
        self._encoder.decode(bodies, out)

    def _tolerance(self, values: Floats) -> NDArray[np.float64]:
        return self._encoder.tolerance(values)


def _on_host(vector: torch.Tensor | Floats) -> Floats:
    """The vector as contiguous float32; its own memory if possible."""
    if isinstance(vector, torch.Tensor):
        if vector.dtype != torch.float32 or not vector.is_cpu or vector.requires_grad:
            vector = vector.detach().to("cpu", torch.float32)
        vector = vector.numpy()
    if vector.dtype == np.float32 and vector.flags.carray:
        return vector
    return np.require(vector, np.float32, ["C", "A", "W"])


def _checked(out: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if out.shape != shape or out.dtype != torch.float32 or not out.is_cpu or out.requires_grad:
        raise UsageError(
            f"the result has {' x '.join(map(str, shape))} float32 values on the host, "
            f"not {out.dtype} of shape {tuple(out.shape)} on {out.device}{' that requires a gradient' * out.requires_grad}"
        )
    return out

"""Payloads: a self-describing header of fixed size, the body, and a checksum.

Little-endian, 44 bytes, then the body::

    offset  0  magic       4 bytes  "HvGP"
            4  version     uint16   1
            6  (zero)      uint16
            8  kind        8 bytes  the compressor's name in ASCII, filled up with zeros
           16  dtype       4 bytes  type of a value on the wire: fp32 fp16 bf16 int8 sign
           20  block       uint32   number of values that share a scale; 0 if the kind has no blocks
           24  d           uint64   values of the expanded vector
           32  count       uint64   values that are sent
           40  checksum    uint32   CRC-32 of everything else
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdgrab.errors import PayloadError

MAGIC = b"HvGP"
VERSION = 1
_FIELDS = struct.Struct("<4sHH8s4sIQQ")
_SEAL = struct.Struct(f"<{_FIELDS.size}sI")
HEADER_BYTES = _SEAL.size

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Payload:
    """One compressed difference, as it is sent."""

    data: Bytes
    """(nbytes,) uint8, contiguous, in host memory."""

    @property
    def nbytes(self) -> int:
        """Its size on the wire in bytes."""
        return self.data.nbytes


class Envelope:
    """Header and size of all payloads of one compressor and one length; a payload's header must equal it byte for byte.

    Args:
        kind: the compressor's name, at most 8 ASCII characters.
        dtype: of a value on the wire, 4 ASCII characters.
        block: number of values that share a scale, or 0.
        d: values of the expanded vector.
        count: values that are sent.
        body: bytes after the header.
    """

    def __init__(self, kind: str, dtype: str, block: int, d: int, count: int, body: int) -> None:
        self.d = d
        self.nbytes = HEADER_BYTES + body
        self._fields = _FIELDS.pack(MAGIC, VERSION, 0, kind.encode(), dtype.encode(), block, d, count)
        self._start = zlib.crc32(self._fields)

    def seal(self, data: Bytes) -> None:
        """Write the header before a finished body.  `data` is (nbytes,) uint8, contiguous."""
        _SEAL.pack_into(data.data, 0, self._fields, zlib.crc32(data[HEADER_BYTES:].data, self._start))

    def check(self, data: Bytes, where: str = "") -> None:
        """Raise unless `data` is an undamaged payload of this kind and shape.

        Args:
            data: (any,) uint8, contiguous, any alignment.
            where: prefix of the message, such as ``"row 3: "``.

        Raises:
            PayloadError: the payload is foreign, truncated, of another version, kind or shape, or damaged; the message tells
                which.
        """
        if len(data) == self.nbytes:
            fields, checksum = _SEAL.unpack_from(data.data)
            if fields == self._fields and checksum == zlib.crc32(data[HEADER_BYTES:].data, self._start):
                return
        raise PayloadError(f"{where}{self._finding(data)}")

    def _finding(self, data: Bytes) -> str:
        """Describe what is wrong with a payload."""
        if len(data) < HEADER_BYTES:
            return f"a payload of {len(data)} bytes is truncated: its header alone has {HEADER_BYTES}"
        magic, version, _, *found = _FIELDS.unpack_from(data.data)
        if magic != MAGIC:
            return f"a foreign payload: it begins with {magic!r}, not {MAGIC!r}"
        if version != VERSION:
            return f"a payload of version {version}: this side reads version {VERSION}; install the same hvdgrab on all ranks"
        expected = list(_FIELDS.unpack(self._fields)[3:])
        if found[:3] != expected[:3]:
            return f"a payload of another kind: {_kind(found)}, where {_kind(expected)} is expected: compare settings"
        if found[3:] != expected[3:]:
            return f"a payload of another shape: {_shape(found)}, where {_shape(expected)} are expected: compare models"
        if len(data) != self.nbytes:
            fault = "truncated" if len(data) < self.nbytes else "too long"
            return f"a payload of {len(data)} bytes is {fault}: its header speaks of {self.nbytes}"
        return "a damaged payload: its checksum does not match its content"


def length(data: Bytes) -> int:
    """The number of values d of the expanded vector, by a payload's header; 0 if the payload is too short for a header."""
    return int(_FIELDS.unpack_from(data.data)[6]) if len(data) >= HEADER_BYTES else 0


def _kind(fields: list[object]) -> str:
    kind, dtype, block = fields[:3]
    assert isinstance(kind, bytes) and isinstance(dtype, bytes)
    of_block = f" in blocks of {block}" if block else ""
    return f"{kind.rstrip(bytes(1))!r} with {dtype!r} values{of_block}".replace("b'", "'")


def _shape(fields: list[object]) -> str:
    return f"{fields[4]} of {fields[3]} values"

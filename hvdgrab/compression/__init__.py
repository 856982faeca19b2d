"""Compression of pair differences.  Knows no MPI: what goes in is a vector, what comes out are bytes."""

from __future__ import annotations

from hvdgrab.compression import dense as _dense  # noqa: F401 - each entered into the registry by being imported
from hvdgrab.compression import topk as _topk  # noqa: F401
from hvdgrab.compression.base import Compressor, Info
from hvdgrab.compression.fold import FoldSketch
from hvdgrab.compression.payload import Payload
from hvdgrab.compression.registry import build_compressor, compressor_kinds

__all__ = ["Compressor", "FoldSketch", "Info", "Payload", "build_compressor", "compressor_kinds"]

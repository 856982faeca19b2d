"""Compression of pair differences: from vectors to bytes and back, without MPI."""

from __future__ import annotations

from hvdgrab.compression import dense as _dense  # noqa: F401 - importing a compressor registers it
from hvdgrab.compression import topk as _topk  # noqa: F401
from hvdgrab.compression.base import Compressor, Info
from hvdgrab.compression.fold import FoldSketch
from hvdgrab.compression.payload import Payload
from hvdgrab.compression.registry import build_compressor, compressor_kinds

__all__ = ["Compressor", "FoldSketch", "Info", "Payload", "build_compressor", "compressor_kinds"]

"""All values of a difference, in full or in fewer bits: ``none``, ``fp16``, ``bf16`` and ``int8``."""

from __future__ import annotations

from hvdgrab.compression.coded import Coded
from hvdgrab.compression.encoders import BLOCK, BFloat16, Float16, Float32, Int8
from hvdgrab.compression.registry import register


@register("none")
class Dense(Coded):
    """Sends every value as float32 (4·d bytes); PairBalance sees the difference itself."""

    def __init__(self) -> None:
        super().__init__("none", Float32(), linear=True, lossless=True)


@register("fp16")
class Half(Coded):
    """Sends every value in half precision under one common power of two (2·d bytes)."""

    def __init__(self) -> None:
        super().__init__("fp16", Float16(), linear=False, lossless=False)


@register("bf16")
class Brain(Coded):
    """Sends the upper half of every value (2·d bytes)."""

    def __init__(self) -> None:
        super().__init__("bf16", BFloat16(), linear=False, lossless=False)


@register("int8")
class Bytewise(Coded):
    """Sends every value in 8 bits, with a scale for each block (d + 4·d/block bytes).

    Args:
        block: number of values that share a scale.

    Raises:
        ConfigError: a block below 1.
    """

    def __init__(self, block: int = BLOCK) -> None:
        super().__init__("int8", Int8(block), linear=False, lossless=False, block=block)

"""``sketch``: the signed fold sketch of a difference (`hvdgrab.compression.fold`), its values encoded."""

from __future__ import annotations

from hvdgrab.compression.coded import Coded
from hvdgrab.compression.encoders import encoder_of
from hvdgrab.compression.fold import FoldSketch
from hvdgrab.compression.registry import register

WIDTH = 4096
DTYPES = ("int8", "fp32", "fp16", "sign")


@register("sketch")
class Sketch(Coded):
    """Sends a linear sketch: as many bytes for every model, and inner products that are right on average.

    Args:
        width: values of the sketch, at least 1.
        dtype: how a value travels: ``int8``, ``fp32``, ``fp16`` or ``sign``.
        seed: of the sketch's signs; equal on all ranks.

    Raises:
        ConfigError: a width, seed or dtype that there is not.
    """

    def __init__(self, width: int = WIDTH, dtype: str = "int8", seed: int = 0) -> None:
        encoder = encoder_of(dtype, DTYPES, "sketch")
        super().__init__("sketch", encoder, linear=encoder.lossless, lossless=False, width=width, dtype=dtype, seed=seed)
        self.projection: FoldSketch = FoldSketch(width, seed)

    def width(self, d: int) -> int:  # noqa: ARG002 - the same for every d
        """The sketch's own width."""
        return self.projection.width

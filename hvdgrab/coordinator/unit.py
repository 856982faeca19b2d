"""What of a unit's gradient is wanted, and what arrives: the seam between catching gradients and ordering by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from hvdgrab.compression.fold import FoldSketch

MEASURING_SEED = 2**63
"""Flipped in the run's seed for the sketch that measures: the signs that decide an order must not judge it."""


class UnitGradient(NamedTuple):
    """Two views of the gradient of a unit's backward passes; the memory is used again for the next unit."""

    vector: torch.Tensor | None
    """(width,) float32: what is balanced; None where the order looks at no gradients."""
    measured: torch.Tensor | None
    """(256,) float32: the sketch that the bound is estimated from, or (d,): where it is measured exactly; None for neither."""


@dataclass(frozen=True)
class Views:
    """Which views of a gradient an ordering session takes."""

    balanced: bool
    """Whether a vector is balanced at all."""
    projection: FoldSketch | None
    """The linear map (d,) -> (width,) that is balanced instead of the gradient itself."""
    measuring: FoldSketch | None
    """The linear map (d,) -> (256,) for the estimated bound."""
    exact: bool
    """Whether the bound is measured from the gradient itself."""

    @property
    def nothing(self) -> bool:
        """Whether only the passing of units counts."""
        return not self.balanced and self.measuring is None and not self.exact

    @property
    def dense(self) -> bool:
        """Whether somebody needs the whole gradient (d,)."""
        return self.exact or (self.balanced and self.projection is None)

    def of(self, gradient: torch.Tensor) -> UnitGradient:
        """The views of a gradient (d,) that is there as a whole; float32, any device."""
        vector = None
        if self.balanced:
            vector = gradient if self.projection is None else self.projection.fold(gradient)
        measured = gradient if self.exact else None
        if self.measuring is not None:
            measured = self.measuring.fold(gradient)
        return UnitGradient(vector, measured)

"""The views of a unit's gradient that an ordering takes, and their way from the training's device without a wait."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from hvdgrab.compression.fold import FoldSketch

CPU = torch.device("cpu")
MEASURING_SEED = 2**63
"""Flips this bit of the run's seed for the sketch that measures: the signs that decide an order must not judge it."""


class UnitGradient(NamedTuple):
    """Two views of the gradient of a unit's backward passes; the next unit uses their memory again."""

    vector: torch.Tensor | None
    """(width,) float32: what is balanced; None if the order looks at no gradients."""
    measured: torch.Tensor | None
    """The bound is estimated from (256,) float32, a sketch, or measured exactly from (d,); None if it is not measured."""


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
        """Whether no gradient is needed: units are only counted."""
        return not self.balanced and self.measuring is None and not self.exact

    @property
    def dense(self) -> bool:
        """Whether the whole gradient (d,) is needed."""
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


def host_memory(*shape: int, device: torch.device) -> torch.Tensor:
    """Zeros (shape) float32 on the host; pinned if ``device`` is a GPU, since every copy from it would otherwise wait."""
    return torch.zeros(*shape, dtype=torch.float32, pin_memory=device.type == "cuda")


class Arrival:
    """A copy into host memory under way: the training stream goes on, and the reader of the copy waits for it.

    Args:
        target: host memory; read it after `wait`.
        result: a tensor of the same shape on any device; it may be overwritten on its stream at once.
    """

    def __init__(self, target: torch.Tensor, result: torch.Tensor) -> None:
        self.target = target
        target.copy_(result.detach(), non_blocking=True)
        self._event = torch.cuda.current_stream(result.device).record_event() if result.is_cuda else None

    def wait(self) -> torch.Tensor:
        """The host memory, once the copy is done."""
        if self._event is not None:
            self._event.synchronize()
        return self.target


class SideStream:
    """The communication thread's own stream on the GPU that trains, for which no training waits; nothing on the host.

    Args:
        device: the model's.
    """

    def __init__(self, device: torch.device) -> None:
        # Made by PyTorch without the implicit order that streams otherwise have with the default one.
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self) -> AbstractContextManager[Any]:
        """A context in which work is queued on this stream, and waits are for this stream alone."""
        stream: AbstractContextManager[Any] = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        return stream

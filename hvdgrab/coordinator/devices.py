"""A GPU that trains and balances at the same time: the balancing has a stream of its own, for which no training waits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class SideStream:
    """Where the communication thread works on a device; nothing on the host.

    Args:
        device: where the model trains.
    """

    def __init__(self, device: torch.device) -> None:
        # Made by PyTorch without the implicit order that streams otherwise have with the default one.
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self) -> AbstractContextManager[Any]:
        """A context in which work is queued here, and results are waited for here alone."""
        stream: AbstractContextManager[Any] = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        return stream

"""From a GPU to the host without waiting: the training stream goes on, whoever reads the copy waits for it."""

from __future__ import annotations

from collections import deque

import torch

from hvdgrab.balance.meters import BoundExact, BoundSketch
from hvdgrab.coordinator.book import Place


def host_memory(*shape: int, device: torch.device) -> torch.Tensor:
    """Zeros (shape) float32 on the host; pinned where results come from a GPU, without which every copy would wait for it."""
    return torch.zeros(*shape, dtype=torch.float32, pin_memory=device.type == "cuda")


class Arrival:
    """A copy into host memory that is on its way.

    Args:
        target: host memory; read it after `wait`.
        result: of the same shape, on any device; may be overwritten on its stream at once.
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


class LateMeter:
    """Feeds a meter a unit late, so that measuring never waits for the device.

    Args:
        meter: of one epoch.
        size: values of what is measured.
        device: where it comes from.
    """

    LAG = 2
    """Units on their way."""

    def __init__(self, meter: BoundSketch | BoundExact, size: int, device: torch.device) -> None:
        self.meter = meter
        self._free = deque(host_memory(self.LAG, size, device=device))
        self._coming: deque[tuple[Place, Arrival]] = deque()

    def add(self, place: Place, measured: torch.Tensor) -> None:
        """Take the (size,) values of the unit at ``place``; their memory may be used again at once."""
        if not self._free:
            self._take()
        self._coming.append((place, Arrival(self._free.popleft(), measured)))

    def finish(self) -> BoundSketch | BoundExact:
        """The meter, with everything that was added."""
        while self._coming:
            self._take()
        return self.meter

    def _take(self) -> None:
        place, arrival = self._coming.popleft()
        self.meter.add(place.position, place.unit, arrival.wait().numpy())  # cheaper for the meter than a tensor
        self._free.append(arrival.target)

"""From a GPU to the host without waiting: the training stream goes on, whoever reads the copy waits for it."""

from __future__ import annotations

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
    """Feeds a meter some units late and several at a time: measuring never waits for a device, and costs less.

    Args:
        meter: of one epoch.
        size: values of what is measured.
        device: where it comes from.
        lag: most units on their way.
    """

    def __init__(self, meter: BoundSketch | BoundExact, size: int, device: torch.device, lag: int = 16) -> None:
        self._meter = meter
        self._on_host = device.type == "cpu"
        self._memory = host_memory(lag, size, device=device)
        self._rows = self._memory.numpy()
        self._places: list[Place] = []
        self._latest: Arrival | None = None

    def add(self, place: Place, measured: torch.Tensor) -> None:
        """Take the (size,) values of the unit at ``place``; their memory may be used again at once."""
        row = len(self._places)
        if self._on_host:
            self._rows[row] = measured.numpy()
        else:
            self._latest = Arrival(self._memory[row], measured)
        self._places.append(place)
        if len(self._places) == len(self._rows):
            self.finish()

    def finish(self) -> BoundSketch | BoundExact:
        """The meter, with everything that was added."""
        if self._latest is not None:  # those before it came on the same stream
            self._latest.wait()
        for place, row in zip(self._places, self._rows, strict=False):
            self._meter.add(place.position, place.unit, row)
        self._places.clear()
        return self._meter

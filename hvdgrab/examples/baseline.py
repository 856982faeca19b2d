"""``--no-grab``: the same script on plain Horovod, for comparing step times and losses.

`torch.utils.data.DistributedSampler` deals all examples anew every epoch.  It repeats a few examples so that every rank gets the
same number, which hvdgrab does not.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from hvdgrab.examples.common import World
from hvdgrab.report import metrics
from hvdgrab.report.metrics import EpochRecord, ScalarMean

ORDER = "plain-horovod"
"""The name of the order in the metrics."""


class PlainSampler(DistributedSampler[Any]):
    """`DistributedSampler` that tells the optimizer when an epoch begins."""

    on_epoch: Callable[[int], None]

    def set_epoch(self, epoch: int) -> None:
        """Deal the examples for ``epoch``."""
        super().set_epoch(epoch)
        self.on_epoch(epoch)


class PlainOptimizer(torch.optim.Optimizer):
    """Horovod's optimizer with the ``log`` and ``close`` of `hvdgrab.GraBOptimizer`, without ordering."""

    def __init__(self, inner: torch.optim.Optimizer, world: World, *, epochs: int, units: int) -> None:
        super().__init__(inner.param_groups, inner.defaults)
        self._inner, self._world = inner, world
        self._epochs, self._units = epochs, units
        self._mean = ScalarMean()
        self._epoch: int | None = None
        self._started = 0.0

    def step(self, closure: Any = None) -> Any:
        """Horovod's step: wait for the averaged gradients, then update."""
        return self._inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 (Horovod's takes no argument)
        """Horovod's ``zero_grad``."""
        self._inner.zero_grad()

    def synchronize(self) -> None:
        """Wait for the averaged gradients."""
        self._inner.synchronize()  # type: ignore[attr-defined]  # Horovod's

    def skip_synchronize(self) -> Any:
        """Context in which `step` does not wait again."""
        return self._inner.skip_synchronize()  # type: ignore[attr-defined]  # Horovod's

    def log(self, **scalars: Any) -> None:
        """Add scalars to the epoch's means."""
        self._mean.add(**scalars)

    def begin(self, epoch: int) -> None:
        """Write the line of the ended epoch and start the next."""
        self.close()
        self._epoch, self._started = epoch, time.perf_counter()

    def close(self) -> None:
        """Write the line of the last epoch."""
        if self._epoch is None:
            return
        seconds = time.perf_counter() - self._started
        means = {name: self._world.mean(f"plain.{name}", *totals) for name, totals in sorted(self._mean.totals().items())}
        self._write(means.pop("loss", None), seconds, means)
        self._mean.clear()
        self._epoch = None

    def _write(self, loss: float | None, seconds: float, extra: dict[str, float]) -> None:
        folder = os.environ.get("HVDGRAB_JOB_DIR")
        if self._world.rank or not folder or self._epoch is None:
            return
        record = EpochRecord(
            self._epoch, ORDER, train_loss=loss, epochs=self._epochs, ranks=self._world.size, units=self._units,
            seconds=seconds, time=time.time(), extra=extra,
        )  # fmt: skip
        metrics.append(Path(folder) / metrics.FILE_NAME, record)


def baseline(
    dataset: Dataset[Any], args: argparse.Namespace, inner: torch.optim.Optimizer, world: World, seed: int
) -> tuple[PlainSampler, DataLoader[Any], PlainOptimizer]:
    """Make sampler, loader and optimizer as in a Horovod script without ordering."""
    sampler = PlainSampler(dataset, num_replicas=world.size, rank=world.rank, shuffle=True, seed=seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.workers)
    optimizer = PlainOptimizer(inner, world, epochs=args.epochs, units=len(loader))
    sampler.on_epoch = optimizer.begin
    return sampler, loader, optimizer

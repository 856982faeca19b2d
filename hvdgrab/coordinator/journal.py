"""What is measured of an epoch, and its line in ``metrics.jsonl``."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdgrab.balance.meters import BoundResult
from hvdgrab.comm.communicator import Communicator, gather_bytes
from hvdgrab.report import metrics

_LOSS = "loss"


@dataclass(frozen=True)
class EpochFacts:
    """What is known of an epoch at its end; ``bytes_sent`` is this rank's, ``bound`` is known on rank 0 only."""

    epoch: int
    order: str
    order_hash: str
    bound: BoundResult
    bytes_sent: int
    bytes_dense: int
    pairs: int
    pairs_dropped: int


class Journal:
    """Collects one rank's times and scalars of an epoch; rank 0 writes the line for all.

    Args:
        path: the file, or None to write nothing (measurements are still exchanged: all ranks must do the same).
        units: n.
        epochs: epochs that the run will have, if the script tells.
    """

    def __init__(self, path: Path | None, units: int, epochs: int | None = None) -> None:
        self._path, self._units, self._epochs = path, units, epochs
        self._scalars = metrics.ScalarMean()
        self._unit_times: list[float] = []
        self._ordering = 0.0
        self._began = time.perf_counter()
        self.last: metrics.EpochRecord | None = None
        """The newest record, on rank 0."""

    def begin_epoch(self) -> None:
        """Start the epoch's clock."""
        self._began = time.perf_counter()

    def unit_done(self) -> None:
        """Note that a unit's last backward pass has ended."""
        self._unit_times.append(time.perf_counter())

    def add_ordering(self, seconds: float) -> None:
        """Add seconds that the training thread spent on ordering."""
        self._ordering += seconds

    def log(self, **scalars: Any) -> None:
        """See `GraBOptimizer.log`."""
        self._scalars.add(**scalars)

    def take(self) -> dict[str, Any]:
        """This rank's measurements of the epoch, JSON-able; those of the next epoch start from zero."""
        times, count = self._unit_times, max(len(self._unit_times), 1)
        measured = {
            "scalars": self._scalars.totals(),
            "step_ms": 1e3 * (times[-1] - times[0]) / (count - 1) if count > 1 else None,
            "ordering_ms": 1e3 * self._ordering / count,
            "seconds": times[-1] - self._began if times else None,
        }
        self._scalars.clear()
        self._unit_times, self._ordering = [], 0.0
        return measured

    def report(self, facts: EpochFacts, measured: dict[str, Any], communicator: Communicator) -> None:
        """Bring all ranks' measurements to rank 0 and write the line there; collective, in the communication thread."""
        everyone = gather_bytes(communicator, json.dumps(measured | {"bytes_sent": facts.bytes_sent}).encode())
        if everyone is None:
            return
        self.last = self._record(facts, [json.loads(one) for one in everyone])
        if facts.pairs_dropped:
            print(
                f"hvdgrab: epoch {facts.epoch}: {facts.pairs_dropped} of {facts.pairs} pairs of gradients were not finite "
                "(a NaN, an infinity) and did not count for the next order",
                file=sys.stderr,
                flush=True,
            )
        if self._path is not None:
            metrics.append(self._path, self.last)

    def _record(self, facts: EpochFacts, ranks: list[dict[str, Any]]) -> metrics.EpochRecord:
        scalars = metrics.ScalarMean.merge([one["scalars"] for one in ranks])
        known = {name: value for name, value in dataclasses.asdict(facts).items() if name not in ("bound", "bytes_sent")}
        return metrics.EpochRecord(
            **known,
            train_loss=scalars.pop(_LOSS, None),
            herding_l2=facts.bound.l2,
            herding_linf=facts.bound.linf,
            herding_l2_vs_random=facts.bound.l2_vs_random,
            bytes_sent=sum(one["bytes_sent"] for one in ranks),
            step_ms=ranks[0]["step_ms"],
            ordering_ms=ranks[0]["ordering_ms"],
            epochs=self._epochs,
            ranks=len(ranks),
            units=self._units,
            seconds=ranks[0]["seconds"],
            time=time.time(),
            extra=scalars,
        )

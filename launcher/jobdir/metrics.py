"""A running training as its ``metrics.jsonl`` shows it."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.host.text import duration

MAX_LINE = 1 << 20


@dataclass(frozen=True)
class Epoch:
    """One finished epoch, for people."""

    number: int
    """From 1."""
    total: int | None
    order: str | None
    train_loss: float | None
    bound: float | None
    """Parallel herding bound relative to the mean of random orders: 1.0 is random reshuffling."""
    seconds: float | None
    """Wall clock of the epoch."""

    @property
    def done(self) -> float | None:
        """Share of the training that is done, 0 to 1."""
        return min(1.0, self.number / self.total) if self.total else None

    def text(self, time_left: float | None) -> str:
        """One line of it."""
        parts = [f"epoch {self.number}/{self.total}" if self.total else f"epoch {self.number}"]
        parts.append(f"loss {self.train_loss:.4f}" if self.train_loss is not None else "loss unknown")
        if self.bound is not None:
            parts.append(f"bound {self.bound:.2f} of random")
        if time_left is not None:
            parts.append(f"{duration(time_left)} left" if self.number != self.total else "last epoch")
        return "  ".join(parts)


class MetricsFollower:
    """Reads a growing ``metrics.jsonl``; lines that are incomplete, broken or no epoch are passed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._partial = b""
        self._durations: list[float] = []
        self._last_seen = time.monotonic()
        self.latest: Epoch | None = None

    def poll(self) -> list[Epoch]:
        """Epochs that were finished since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial if len(self._partial) <= MAX_LINE else b""
        epochs = [epoch for epoch in map(_parse, lines) if epoch is not None]
        for epoch in epochs:
            self._note(epoch)
        return epochs

    def _note(self, epoch: Epoch) -> None:
        now = time.monotonic()
        self._durations.append(epoch.seconds if epoch.seconds is not None else now - self._last_seen)
        self._last_seen = now
        self.latest = epoch

    def time_left(self) -> float | None:
        """Seconds until the end, from the mean of the last five epochs; None if the total is unknown."""
        if self.latest is None or not self.latest.total:
            return None
        recent = self._durations[-5:]
        since = time.monotonic() - self._last_seen
        return max(0.0, (self.latest.total - self.latest.number) * sum(recent) / len(recent) - since)


def _parse(line: bytes) -> Epoch | None:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or type(data.get("epoch")) is not int:
        return None
    order = data.get("order")
    return Epoch(
        number=data["epoch"] + 1,
        total=_whole(data.get("epochs")),
        order=order if isinstance(order, str) else None,
        train_loss=_number(data.get("train_loss")),
        bound=_number(data.get("herding_l2_vs_random")),
        seconds=_number(data.get("seconds")),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None

"""Adding up the gradients of a unit's backward passes, parameter by parameter, as the hooks see them.

`DenseCollector` keeps the whole gradient (d,).  `StreamCollector` folds each parameter's gradient into a linear sketch at once
and keeps nothing of the model's size: its memory is the same for every model.
"""

from __future__ import annotations

from typing import Protocol

import torch

from hvdgrab.compression.fold import FoldSketch
from hvdgrab.compression.rows import FoldRows
from hvdgrab.coordinator.gradient import UnitGradient, Views
from hvdgrab.training.parameters import Entry, ParameterTable

STREAM_WIDTH = 4096
"""Width of the rows that gradients stream through if no sketch is balanced and only the bound is estimated."""


class Collector(Protocol):
    """Takes gradients during a unit's backward passes, and gives their views at its end."""

    def take(self, index: int, gradient: torch.Tensor, scale: float) -> None:
        """Add scale · the gradient of the parameter ``table.entries[index]``; dense or sparse, read only, not kept."""

    def finish(self) -> UnitGradient | None:
        """The views of the unit's gradient, if any are wanted.  The next `take` starts the next unit."""

    def forget(self) -> None:
        """Drop what was taken: the unit will not be completed."""


def build_collector(table: ParameterTable, views: Views) -> Collector:
    """The collector that needs the least memory for these views."""
    if views.nothing:
        return NoCollector()
    device = table.entries[0].parameter.device
    return DenseCollector(table, views, device) if views.dense else StreamCollector(table, views, device)


class NoCollector:
    """For orders and bounds that look at no gradients."""

    def take(self, index: int, gradient: torch.Tensor, scale: float) -> None:
        """Nothing is kept."""

    def finish(self) -> UnitGradient | None:
        """No view is wanted."""
        return None

    def forget(self) -> None:
        """Nothing was kept."""


class DenseCollector:
    """Keeps the gradient as one vector (d,) float32 on the model's device."""

    def __init__(self, table: ParameterTable, views: Views, device: torch.device) -> None:
        self._views = views
        self._vector = torch.zeros(table.dimension, dtype=torch.float32, device=device)
        self._parts = [self._vector[entry.start : entry.start + entry.length] for entry in table.entries]
        self._seen = [False] * len(table.entries)

    def take(self, index: int, gradient: torch.Tensor, scale: float) -> None:
        """See `Collector.take`."""
        dense = (gradient.to_dense() if gradient.is_sparse else gradient).reshape(-1)
        part = self._parts[index]
        if self._seen[index]:
            part.add_(dense.to(part.device), alpha=scale)
            return
        part.copy_(dense)
        if scale != 1.0:
            part.mul_(scale)
        self._seen[index] = True

    def finish(self) -> UnitGradient | None:
        """See `Collector.finish`; parameters that got no gradient count as zero."""
        for part, seen in zip(self._parts, self._seen, strict=True):
            if not seen:
                part.zero_()
        self.forget()
        return self._views.of(self._vector)

    def forget(self) -> None:
        """See `Collector.forget`."""
        self._seen = [False] * len(self._seen)


class StreamCollector:
    """Folds every gradient into the rows of a sketch as it comes: 64·width floats, 1 MiB, whatever the model.

    The sketch that measures is folded from the rows, with signs of its own.
    """

    def __init__(self, table: ParameterTable, views: Views, device: torch.device) -> None:
        self._views = views
        sketch = views.projection or FoldSketch(STREAM_WIDTH, 0 if views.measuring is None else views.measuring.seed)
        self._rows = FoldRows(sketch, table.dimension, device)
        self._measured = None if views.measuring is None else self._measuring_rows(views.measuring, table.dimension, device)
        self._entries = table.entries
        self._targets = [
            self._rows.view_of(entry.parameter.shape, entry.start) if entry.length else None for entry in table.entries
        ]
        self._device = device
        self._dirty = False

    def take(self, index: int, gradient: torch.Tensor, scale: float) -> None:
        """See `Collector.take`."""
        if self._dirty:
            self._rows.clear()
            self._dirty = False
        target = self._targets[index]
        if gradient.is_sparse:
            self._take_sparse(self._entries[index], gradient, scale)
        elif target is not None and gradient.device == self._device:
            target[0].add_(gradient, alpha=target[1] * scale)
        else:
            self._rows.add(gradient.to(self._device), self._entries[index].start, scale)

    def finish(self) -> UnitGradient | None:
        """See `Collector.finish`."""
        if self._dirty:  # nothing was taken since the last unit
            self._rows.clear()
        self._dirty = True
        vector = self._rows.finish() if self._views.balanced else None
        return UnitGradient(vector, None if self._measured is None else self._measure(self._measured))

    def forget(self) -> None:
        """See `Collector.forget`."""
        self._dirty = True

    def _measuring_rows(self, sketch: FoldSketch, dimension: int, device: torch.device) -> FoldRows:
        """The sketch that measures.  A small model's rows hold the gradient itself, up to a common sign: sketch them in place."""
        rows = self._rows.rows
        in_place = dimension <= sketch.period and -(-dimension // sketch.buckets) * sketch.buckets <= rows.numel()
        return FoldRows(sketch, dimension, device, rows=rows) if in_place else FoldRows(sketch, rows.numel(), device)

    def _measure(self, measured: FoldRows) -> torch.Tensor:
        if measured.rows.data_ptr() != self._rows.rows.data_ptr():
            measured.clear()
            measured.add(self._rows.rows, 0)
        return measured.finish()

    def _take_sparse(self, entry: Entry, gradient: torch.Tensor, scale: float) -> None:
        # Sparse gradients of embeddings: rows of a matrix, not necessarily coalesced, which a sum does not need.
        if gradient.sparse_dim() != 1 or gradient.ndim < 2:
            self._rows.add(gradient.to_dense(), entry.start, scale)
            return
        indices, values = gradient._indices()[0], gradient._values()
        self._rows.add_rows(indices, values.flatten(1), entry.start, scale)

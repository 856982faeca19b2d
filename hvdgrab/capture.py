"""Catching each backward pass's own gradient, before Horovod's allreduce touches it.

A parameter's tensor hook sees the gradient of this backward pass alone: before it is added to ``p.grad``, and before Horovod's
hook, which sits on the AccumulateGrad node.  Its value is copied inside the hook; a reference would later hold the reduced
gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdgrab.errors import UsageError
from hvdgrab.parameters import Entry, ParameterTable

_NESTED = (
    "a backward pass ran inside another one: activation checkpointing with use_reentrant=True is not supported, pass "
    "use_reentrant=False"
)


class GradientCapture:
    """Collects the gradients of a unit's backward passes and hands their sum on.

    Args:
        table: the parameters that take part.
        passes_per_unit: backward passes that are added up.
        on_unit: called in the thread of the backward call with the unit's gradient (d,) float32, whose memory is used again for
        the next
            unit, or None if ``values`` is False; and the number of passes.
        values: whether gradients are needed, or only their passing.
    """

    def __init__(
        self, table: ParameterTable, passes_per_unit: int, on_unit: Callable[[torch.Tensor | None, int], None], values: bool
    ) -> None:
        self._table = table
        self._passes_per_unit = passes_per_unit
        self._on_unit = on_unit
        device = table.entries[0].parameter.device
        self._vector = torch.zeros(table.dimension, dtype=torch.float32, device=device) if values else None
        self._seen = [False] * len(table.entries)
        self._paused = 0
        self._task = -1
        self._open = False
        self.passes = 0
        """Backward passes of the current unit that are complete."""
        self.any_pass = False
        """Whether any backward pass, paused or not, has reached a parameter."""
        self.seconds = 0.0
        """Time spent in hooks since it was last set to zero."""
        self._hooks: list[Any] = [
            entry.parameter.register_hook(self._hook_of(index, entry))  # type: ignore[no-untyped-call]
            for index, entry in enumerate(table.entries)
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes inside are none of a unit's."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def forget(self) -> int:
        """Drop the passes of a unit that was not completed, as when an epoch is left in its middle; returns their number."""
        passes, self.passes = self.passes, 0
        self._seen = [False] * len(self._seen)
        return passes

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook_of(self, index: int, entry: Entry) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            self.any_pass = True
            if self._paused:
                return
            began = time.perf_counter()
            self._begin_pass()
            self._take(index, entry, gradient)
            self.seconds += time.perf_counter() - began

        return hook

    def _begin_pass(self) -> None:
        """At a pass's first hook, ask autograd to call back at its end."""
        task: int = torch._C._current_graph_task_id()
        if self._open and task == self._task:
            return
        if task < self._task:
            raise UsageError(_NESTED)
        if self._open and self.passes == 0:  # the last pass was broken off by an exception: forget what it left
            self._seen = [False] * len(self._seen)
        self._task, self._open = task, True
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    @torch.no_grad()
    def _take(self, index: int, entry: Entry, gradient: torch.Tensor) -> None:
        if self._vector is None:
            return
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        target = self._vector[entry.start : entry.start + entry.length]
        if self._seen[index]:
            target.add_(dense.reshape(-1).to(target.device))
        else:
            target.copy_(dense.reshape(-1))
            self._seen[index] = True

    def _end_pass(self) -> None:
        self._open = False
        if torch._C._current_autograd_node() is not None:  # at the end of a pass of its own no node is being evaluated
            raise UsageError(_NESTED)
        self.passes += 1
        if self.passes < self._passes_per_unit:
            return
        began = time.perf_counter()
        passes, self.passes = self.passes, 0
        self._table.check_unchanged()
        if self._vector is not None:
            for entry, seen in zip(self._table.entries, self._seen, strict=True):
                if not seen:
                    self._vector[entry.start : entry.start + entry.length].zero_()
            self._seen = [False] * len(self._seen)
        self._on_unit(self._vector, passes)
        self.seconds += time.perf_counter() - began

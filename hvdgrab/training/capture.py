"""Catching each backward pass's own gradient, before Horovod's allreduce touches it.

A parameter's tensor hook sees the gradient of this backward pass alone: before it is added to ``p.grad``, and before Horovod's
hook, which sits on the AccumulateGrad node.  Its value is copied inside the hook; a reference would later hold the reduced
gradient.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvdgrab.coordinator.gradient import UnitGradient
from hvdgrab.errors import UsageError
from hvdgrab.training.collect import Collector
from hvdgrab.training.parameters import ParameterTable

_NESTED = (
    "a backward pass ran inside another one: activation checkpointing with use_reentrant=True is not supported, pass "
    "use_reentrant=False"
)
SMALLEST_LOSS_SCALE = 1e-37
"""Below it, one over the factor is no float32."""


class GradientCapture:
    """Counts the backward passes of a unit, and has its gradients collected.

    Args:
        table: the trainable parameters.
        passes_per_unit: backward passes that are added up.
        on_unit: called in the thread of the backward call with the views of the unit's gradient (or None), whose memory the next
            unit uses again, and the number of passes.
        collector: takes the gradients.
        loss_scale: the factor by which the loss of a backward pass was multiplied; asked once a pass.
        normalise: divide each parameter's gradient by its norm; of several passes each by its own.
    """

    def __init__(
        self,
        table: ParameterTable,
        passes_per_unit: int,
        on_unit: Callable[[UnitGradient | None, int], None],
        collector: Collector,
        *,
        loss_scale: Callable[[], float] | None = None,
        normalise: bool = False,
    ) -> None:
        self._table = table
        self._passes_per_unit = passes_per_unit
        self._on_unit = on_unit
        self._collector = collector
        self._loss_scale = loss_scale
        self._normalise = normalise
        self._scale = 1.0
        self._paused = 0
        self._task = -1
        self._open = False
        self.passes = 0
        """Backward passes of the current unit that are complete."""
        self.any_pass = False
        """Whether any backward pass, paused or not, has reached a parameter."""
        self._seconds = 0.0
        self._hooks: list[Any] = []

    def install(self) -> None:
        """Put the hooks on the parameters."""
        self._hooks = [
            entry.parameter.register_hook(self._hook_of(index, entry.length > 0))  # type: ignore[no-untyped-call]
            for index, entry in enumerate(self._table.entries)
        ]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes inside are none of a unit's."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def take_seconds(self) -> float:
        """Time spent in hooks since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def forget(self) -> int:
        """Drop the passes of a unit that was not completed, for example of an epoch left in its middle; returns their number."""
        passes, self.passes = self.passes, 0
        self._collector.forget()
        return passes

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _hook_of(self, index: int, takes_part: bool) -> Callable[[torch.Tensor], None]:
        # Runs once for every parameter in every step: nothing here is free.
        clock, task_of, take = time.perf_counter, torch._C._current_graph_task_id, self._collector.take

        def hook(gradient: torch.Tensor) -> None:
            began = clock()
            self.any_pass = True
            if self._paused:
                return
            if not self._open or task_of() != self._task:
                self._begin_pass()
            if takes_part:
                # With create_graph=True the gradient has a history of its own.
                value = gradient.detach() if gradient.requires_grad else gradient
                take(index, value, self._scale_of(value) if self._normalise else self._scale)
            self._seconds += clock() - began

        return hook

    def _begin_pass(self) -> None:
        """At a pass's first hook, ask autograd to call back at its end."""
        task: int = torch._C._current_graph_task_id()
        if task < self._task:
            raise UsageError(_NESTED)
        if self._open and self.passes == 0:  # the last pass was broken off by an exception: forget what it left
            self._collector.forget()
        self._task, self._open = task, True
        if self._loss_scale is not None:
            factor = self._loss_scale()
            # A factor that float32 cannot divide by leaves no gradient: the pair is dropped, as for one that overflowed.
            self._scale = 1.0 / factor if factor > SMALLEST_LOSS_SCALE else math.nan
        torch.autograd.Variable._execution_engine.queue_callback(self._end_pass)

    def _scale_of(self, gradient: torch.Tensor) -> float:
        """The factor that makes a parameter's gradient a unit vector, whatever the loss scale; 1 for a zero gradient."""
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        norm = float(torch.linalg.vector_norm(values, dtype=torch.float32))
        return 1.0 / norm if norm > 0 else 1.0

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
        self._on_unit(self._collector.finish(), passes)
        self._seconds += time.perf_counter() - began

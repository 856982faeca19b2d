"""The optimizer wrapper: everything a Horovod optimizer does, plus catching the local gradients that order the data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.world import connector, end_job
from hvdgrab.coordinator.build import build
from hvdgrab.coordinator.gradient import UnitGradient
from hvdgrab.coordinator.journal import Journal
from hvdgrab.coordinator.saved import SavedState
from hvdgrab.coordinator.session import OrderingSession
from hvdgrab.errors import ConfigError, UsageError
from hvdgrab.report import metrics
from hvdgrab.training.capture import GradientCapture
from hvdgrab.training.collect import build_collector
from hvdgrab.training.exit import close_at_exit
from hvdgrab.training.horovod import HorovodFace
from hvdgrab.training.job import Progress
from hvdgrab.training.parameters import ParameterTable
from hvdgrab.training.sampler import GraBSampler

STATE_KEY = "hvdgrab"
"""The key of the ordering's part in a state dict, beside the optimizer's ``state`` and ``param_groups``."""
STEPS_LOOKED_AT = 4
"""First steps in which a GradScaler is looked for: several, since a scaler may skip the first ones."""


class GraBOptimizer(torch.optim.Optimizer):
    """Wraps ``hvd.DistributedOptimizer`` (or, in a single process, any optimizer) and orders the sampler's data by its gradients.

    The wrapped optimizer goes on as before: ``synchronize``, ``skip_synchronize``, ``step``, ``zero_grad``, learning-rate
    schedulers and ``hvd.broadcast_optimizer_state`` are its own; ``param_groups`` and ``state`` are the same objects.  What
    `step` does, in this order:

    1. a closure, if given, runs once with gradients enabled;
    2. before the first backward pass, with zero gradients (``hvd.broadcast_optimizer_state`` does that to create state), the
       inner optimizer runs locally and the weights stay as they are;
    3. otherwise the wrapped optimizer synchronises and steps;
    4. the closure's loss is returned.

    Args:
        optimizer: made over ``model``'s parameters.
        sampler: the one that the training DataLoader uses as ``batch_sampler``.
        model: gives the parameters' names.
        passes_per_unit: backward passes that make one unit, if the script splits each batch; default 1, or the job's YAML.
        total_epochs: epochs that the run will have; only shown (time left).
        grad_scaler: the ``torch.amp.GradScaler`` whose ``scale(loss)`` the script calls backward on; its factor is divided out of
            what is balanced, so that a change of it does not look like a change of the gradient.
        connect: makes the communicator between the ranks; for tests and simulations (`hvdgrab.comm.simulated`).

    Raises:
        UsageError: an optimizer or a setting that cannot work, with the reason.
        WorldError: Horovod, MPI and the launcher do not agree on the ranks.
        ConfigError: ``passes_per_unit`` contradicts the job's YAML.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        sampler: GraBSampler,
        model: nn.Module,
        *,
        passes_per_unit: int | None = None,
        total_epochs: int | None = None,
        grad_scaler: Any = None,
        connect: Callable[[], Communicator] | None = None,
    ) -> None:
        _refuse_types(optimizer, sampler, model)
        self._inner = HorovodFace(optimizer, sampler.world, simulated=connect is not None)
        # The base class sets up step hooks and profiling; it works on copies, then the wrapped optimizer's own objects take over.
        self._ready = False
        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        self._share()
        self._ready = True
        self._sampler = sampler
        config = _with_passes(sampler, passes_per_unit)
        self._table = ParameterTable(optimizer, model, config.layers)
        self._journal = Journal(_metrics_path() if sampler.world.rank == 0 else None, len(sampler), total_epochs)
        self._progress = Progress() if sampler.world.rank == 0 else None
        parts = build(config, sampler.book, self._table.dimension, self._table.entries[0].parameter.device)
        self._capture = GradientCapture(
            self._table,
            config.passes_per_unit,
            self._on_unit,
            build_collector(self._table, parts.views),
            loss_scale=_loss_scale(grad_scaler),
            normalise=config.normalise_layers,
        )
        self._session = OrderingSession(
            parts,
            sampler.book,
            {**sampler.facts(), "parameters": self._table.digest()},
            connect or connector(sampler.world, config.communication),
            self._journal,
            end_job,
            self._capture.forget,
        )
        sampler.attend(self._session, self._inner.retire)
        scaled = grad_scaler is not None or config.normalise_layers or not parts.views.balanced
        self._looks_left = 0 if scaled else STEPS_LOOKED_AT
        self._capture.install()  # last: an optimizer that was refused leaves no hooks behind
        self._closing = close_at_exit(self._session, sampler.world)

    # --- what Horovod's optimizer does -------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters, see the class; returns the closure's loss, or None."""
        self._share()
        self._look_for_a_scaler()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._capture.any_pass or closure is not None or not self._inner.is_distributed:
            self._inner.step()
        elif self._has_gradients():
            raise UsageError(
                f"rank {self._sampler.world.rank}: the optimizer steps, but no backward pass has reached the parameters that "
                "GraBOptimizer was given: pass it the model that is trained"
            )
        else:
            self._inner.step_locally()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; as with Horovod an AssertionError while reductions are under way."""
        self._inner.zero_grad(set_to_none)

    def synchronize(self) -> None:
        """Wait for the averaged gradients, e.g. to clip them; follow with ``step()`` inside `skip_synchronize`."""
        self._inner.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[Any]:
        """Inside, ``step()`` does not synchronise again."""
        return self._inner.skip_synchronize()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes Horovod waits for before it reduces; each is still a unit of its own."""
        self._inner.set_backward_passes_per_step(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: Horovod would never reduce the new group's gradients.

        Raises:
            UsageError: always, after construction.
        """
        if self._ready:
            raise UsageError(
                "add_param_group after construction: Horovod would never average the new parameters' gradients. Add the group "
                "to the base optimizer first, then close() this one and make hvd.DistributedOptimizer and GraBOptimizer again"
            )
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state and, under ``hvdgrab``, the ordering's.

        Save it on the designated rank (0 by default), or on every rank: the running sum is there alone, the gradients of a pair
        that is not complete are each rank's own.  Tensors and plain numbers; ``torch.load(weights_only=True)`` reads it.
        """
        return {**self._inner.optimizer.state_dict(), STATE_KEY: self._session.saved_state().to_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from `state_dict`, on every rank or on rank 0 alone; then rank 0's reaches the others at the first unit.

        A state without an ordering part (of the plain optimizer) leaves the order as it is.

        Raises:
            StateError: the ordering's part is of another run.
        """
        rest = {key: value for key, value in state_dict.items() if key != STATE_KEY}
        saved = SavedState.from_dict(state_dict[STATE_KEY]) if STATE_KEY in state_dict else None
        if saved is not None:
            self._session.restore(saved)
        self._inner.optimizer.load_state_dict(rest)
        self._share()

    # --- what is new -------------------------------------------------------------------------------------------------------

    def log(self, **scalars: Any) -> None:
        """Note numbers, or tensors of one element: their means over epoch and ranks go into the line of ``metrics.jsonl``.

        ``loss`` becomes ``train_loss``; every other name is a column of its own.  May differ from rank to rank.

        Raises:
            UsageError: a name that is a column already, or no number.
        """
        self._journal.log(**scalars)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Backward passes inside are no units: for probing, evaluation and anything else that does not train."""
        with self._capture.paused():
            yield

    def skip_unit(self) -> None:
        """Tell that the batch just drawn gets no backward pass; every rank must skip the same one."""
        self._session.unit(None, passes=0)

    def close(self) -> None:
        """Finish the epoch under way and write its line; idempotent, also done at exit.  Nothing is ordered afterwards."""
        self._capture.close()
        self._closing()

    @property
    def last_epoch(self) -> metrics.EpochRecord | None:
        """The newest epoch's measurements on rank 0 (None elsewhere and before the first is complete)."""
        return self._journal.last

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "GraBOptimizer cannot be pickled or copied (it holds hooks and a thread): save optimizer.state_dict() instead"
        )

    def __repr__(self) -> str:
        return f"GraBOptimizer({self._sampler.config.order}, {self._inner.optimizer!r})"

    def _on_unit(self, gradient: UnitGradient | None, passes: int) -> None:
        self._session.unit(gradient, passes)
        if self._progress is not None:
            self._progress.moved()
        self._journal.add_ordering(self._capture.take_seconds())

    def _look_for_a_scaler(self) -> None:
        """Warn if a GradScaler that was not given calls `step`: its factor changes between two units."""
        if not self._looks_left:
            return
        self._looks_left -= 1
        scaler = _scaler_that_called(sys._getframe(2))
        if scaler is None:
            return
        self._looks_left = 0
        if getattr(scaler, "is_enabled", lambda: True)():
            print(
                f"hvdgrab: rank {self._sampler.world.rank}: the loss is scaled by a GradScaler whose factor is balanced "
                "along with the gradients: say GraBOptimizer(..., grad_scaler=scaler)",
                file=sys.stderr,
            )

    def _share(self) -> None:
        inner = self._inner.optimizer
        self.param_groups, self.state, self.defaults = inner.param_groups, inner.state, inner.defaults

    def _has_gradients(self) -> bool:
        return any(entry.parameter.grad is not None and bool((entry.parameter.grad != 0).any()) for entry in self._table.entries)


def _refuse_types(optimizer: object, sampler: object, model: object) -> None:
    for what, value, kind in (
        ("optimizer", optimizer, torch.optim.Optimizer),
        ("sampler", sampler, GraBSampler),
        ("model", model, nn.Module),
    ):
        if not isinstance(value, kind):
            raise UsageError(
                f"GraBOptimizer(optimizer, sampler, model): {what} is a {type(value).__name__}, not a "
                f"{kind.__module__}.{kind.__qualname__}"
            )
    if isinstance(optimizer, GraBOptimizer):
        raise UsageError("this optimizer is a GraBOptimizer already")
    if isinstance(sampler, GraBSampler) and sampler.attended:
        raise UsageError(
            "this sampler already belongs to another GraBOptimizer: close() that one first, or use one sampler for each"
        )


def _scaler_that_called(frame: FrameType | None) -> Any | None:
    """The GradScaler among the nearest callers from ``frame`` on; the base class wraps `step` once or twice."""
    for _ in range(3):
        if frame is None:
            return None
        if frame.f_globals.get("__name__") == "torch.amp.grad_scaler":
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None


def _with_passes(sampler: GraBSampler, passes_per_unit: int | None) -> Any:
    if passes_per_unit is None:
        return sampler.config
    given = sampler.config.passes_per_unit
    if "passes_per_unit" in sampler.config.model_fields_set and given != passes_per_unit:
        raise ConfigError(
            f"'passes_per_unit' is {given} in the job's YAML or the sampler's GraBConfig but {passes_per_unit} in "
            "GraBOptimizer's argument: remove one of the two"
        )
    if passes_per_unit < 1:
        raise ConfigError(f"passes_per_unit must be at least 1, not {passes_per_unit}")
    return sampler.config.model_copy(update={"passes_per_unit": passes_per_unit})


def _metrics_path() -> Path | None:
    directory = os.environ.get("HVDGRAB_JOB_DIR")
    return Path(directory) / metrics.FILE_NAME if directory else None


def _loss_scale(scaler: Any) -> Callable[[], float] | None:
    """The function that gives the factor of a pass's loss; on CUDA it waits for the device, as ``scaler.step`` does too."""
    if scaler is None:
        return None
    if isinstance(scaler, type) or not callable(getattr(scaler, "get_scale", None)):
        raise UsageError(f"grad_scaler must be a torch.amp.GradScaler, not a {type(scaler).__name__}")
    return scaler.get_scale  # type: ignore[no-any-return]

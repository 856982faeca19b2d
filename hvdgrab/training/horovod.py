"""The one place that knows what Horovod's optimizer looks like inside.

Horovod makes its optimizer's class at run time; some of its methods have other signatures than torch's.  Without Horovod, in a
single process, the same face is that of a plain optimizer.
"""

from __future__ import annotations

import itertools
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hvdgrab.comm.world import World, initialized_horovod
from hvdgrab.errors import UsageError, WorldError

_NEVER = 2**62
_meetings = itertools.count()


class HorovodFace:
    """Calls the wrapped optimizer the way it can be called.

    Args:
        optimizer: made by ``hvd.DistributedOptimizer``, or plain.
        world: the ranks; if there are several, a plain optimizer is refused.
        simulated: the ranks are threads of one process, whose script averages gradients itself.

    Raises:
        UsageError: LBFGS, or Adasum.
        WorldError: a plain optimizer on several ranks, or a process set that leaves ranks out.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, world: World, simulated: bool = False) -> None:
        self.optimizer: Any = optimizer
        self.is_distributed = hasattr(optimizer, "_handles") and hasattr(optimizer, "skip_synchronize")
        self._refuse_unsupported()
        if world.size > 1 and not self.is_distributed and not simulated:
            raise WorldError(
                f"rank {world.rank} of {world.size}: {type(optimizer).__name__} is not wrapped by hvd.DistributedOptimizer, so "
                "nobody would average the gradients: GraBOptimizer(hvd.DistributedOptimizer(optimizer, "
                "model.named_parameters()), sampler, model)"
            )

    def step(self) -> None:
        """Synchronise, unless told to skip it, and update the parameters."""
        self.optimizer.step()

    def step_locally(self) -> None:
        """Let the base optimizer create its state without Horovod and without touching a weight.

        Ranks that do this while others do not must not drift apart: weight decay alone would move their weights.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        kept = [parameter.detach().clone() for parameter in parameters]
        if self.is_distributed:
            self._base.step()
        else:
            self.optimizer.step()
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)

    def zero_grad(self, set_to_none: bool) -> None:
        """Clear gradients in either form; Horovod's own method takes no argument but checks for a race."""
        if not self.is_distributed:
            self.optimizer.zero_grad(set_to_none=set_to_none)
        elif self.optimizer._handles:
            self.optimizer.zero_grad()  # raises: reductions are under way
        else:
            self._base.zero_grad(set_to_none=set_to_none)

    def synchronize(self) -> None:
        """Wait for the reduced gradients; nothing to do without Horovod."""
        if self.is_distributed:
            self.optimizer.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[Any]:
        """Horovod's context manager of that name."""
        context: AbstractContextManager[Any] = self.optimizer.skip_synchronize() if self.is_distributed else nullcontext()
        return context

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Horovod's method of that name; nothing to do without Horovod."""
        if self.is_distributed:
            self.optimizer.set_backward_passes_per_step(passes)

    def retire(self) -> None:
        """Make way for a new optimizer over the same parameters: Horovod never takes its hooks off them.

        The old hooks go on counting backward passes towards a step that never comes; otherwise they would reduce every gradient
        a second time, or raise.
        """
        self.set_backward_passes_per_step(_NEVER)

    @property
    def _base(self) -> Any:
        """The optimizer without Horovod's methods, which sit in a class that was made from the base optimizer's."""
        return super(type(self.optimizer), self.optimizer)

    def _refuse_unsupported(self) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise UsageError(
                "LBFGS evaluates its closure several times a step, so that no backward pass belongs to one unit: it is not "
                "supported"
            )
        hvd = initialized_horovod()
        if hasattr(self.optimizer, "_starting_models") or (hvd is not None and getattr(self.optimizer, "op", None) == hvd.Adasum):
            raise UsageError(
                "Adasum combines updates instead of averaging gradients, which the ordering assumes: use hvd.Average or hvd.Sum"
            )
        process_set = getattr(self.optimizer, "process_set", None)
        if process_set is not None and getattr(process_set, "process_set_id", 0) not in (0, None):
            raise WorldError(
                "hvd.DistributedOptimizer was given a process set: all ranks must train together, use the global one"
            )


def wait_for_everyone(timeout: float) -> bool:
    """Wait until every rank has come here, as often as this one.

    Returns:
        Whether they all have; False after ``timeout`` seconds, or if Horovod has ended.
    """
    hvd = initialized_horovod()
    if hvd is None:
        return False
    ended = sys.modules["horovod.common.exceptions"].HorovodInternalError
    deadline = time.monotonic() + timeout
    try:
        handle = hvd.allreduce_async(torch.zeros(1), name=f"hvdgrab.end.{next(_meetings)}", op=hvd.Sum)
        while not hvd.poll(handle):  # Horovod offers no wait with a limit
            if time.monotonic() > deadline:
                return False
            time.sleep(1e-3)
        hvd.synchronize(handle)
    except ended:
        return False
    return True

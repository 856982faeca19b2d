"""The table of parameters: where each parameter's gradient lies in the vector that is balanced."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from hvdgrab.balance.layers import select_layers
from hvdgrab.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """One parameter and the coordinates [start, start + length) of its gradient."""

    name: str
    parameter: torch.Tensor
    start: int
    length: int
    """0 for a parameter that does not take part in the ordering (see ``layers``)."""


class ParameterTable:
    """The trainable parameters of an optimizer, sorted by name, so that every rank and every run numbers them alike.

    Args:
        optimizer: the parameters of its groups take part, except those that are frozen now.
        model: gives the names; a parameter that two modules share has the first of its names.
        layers: glob patterns of the names that take part; by default all do.

    Raises:
        UsageError: the optimizer holds a parameter that is not the model's, or nothing is trainable, or a pattern fits no name.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: nn.Module, layers: Sequence[str] | None = None) -> None:
        # A compiled module calls its parameters differently; layers and saved states should not see that.
        named = [(name.replace("_orig_mod.", ""), parameter) for name, parameter in model.named_parameters()]
        names: dict[torch.Tensor, str] = {parameter: name for name, parameter in reversed(named)}
        members = list(_members(optimizer))
        foreign = [tuple(parameter.shape) for parameter in members if parameter not in names]
        if foreign:
            raise UsageError(
                f"the optimizer holds {len(foreign)} parameters that are not the model's (the first has shape {foreign[0]}): "
                "GraBOptimizer(optimizer, sampler, model) needs the model whose parameters the optimizer was given"
            )
        trainable = sorted((names[parameter], parameter) for parameter in members if parameter.requires_grad)
        if not trainable:
            raise UsageError("no parameter of the optimizer is trainable: there is no gradient to order by")
        if complex_names := [name for name, parameter in trainable if parameter.is_complex()]:
            raise UsageError(
                f"parameter '{complex_names[0]}' is complex: its gradient cannot be balanced; store real and imaginary parts "
                "(torch.view_as_real) as the parameter"
            )
        names_in_order = [name for name, _ in trainable]
        chosen = set(names_in_order if layers is None else [names_in_order[i] for i in select_layers(names_in_order, layers)])
        self.entries: list[Entry] = []
        """One for each trainable parameter, sorted by name."""
        self.dimension = 0
        """d: coordinates of the parameters that take part."""
        for name, parameter in trainable:
            length = parameter.numel() if name in chosen else 0
            self.entries.append(Entry(name, parameter, self.dimension, length))
            self.dimension += length
        if not self.dimension:
            raise UsageError(f"the parameters that take part have no values at all (layers: {list(layers or ['*'])})")
        self._optimizer = optimizer
        self._known = {parameter for _, parameter in trainable}
        self._frozen = [(names[parameter], parameter) for parameter in members if not parameter.requires_grad]
        self._count = len(members)

    def digest(self) -> str:
        """A hash (hex, 16 characters) of names, shapes and order."""
        text = "\n".join(f"{entry.name} {tuple(entry.parameter.shape)}" for entry in self.entries)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def check_unchanged(self) -> None:
        """Notice parameters that began to take part after the table was made; ones that no longer do simply count as zero.

        Raises:
            UsageError: naming the parameter, and what to do.
        """
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise UsageError(
                    f"parameter '{name}' has been unfrozen: neither Horovod nor the ordering knows its gradient. After "
                    "unfreezing, close() this optimizer, then make hvd.DistributedOptimizer and GraBOptimizer again over the "
                    "same sampler: the order goes on"
                )
        if sum(len(group["params"]) for group in self._optimizer.param_groups) != self._count:
            raise UsageError(
                "parameters were added to the optimizer after GraBOptimizer was made: neither Horovod nor the ordering knows "
                "their gradients. close() this optimizer, then make hvd.DistributedOptimizer and GraBOptimizer again over the "
                "same sampler: the order goes on"
            )


def _members(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])

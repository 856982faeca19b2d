"""Small trainings for the checks: a model, data, the wrapped optimizer, and a record of every unit."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdgrab import GraBConfig, GraBOptimizer, GraBSampler
from hvdgrab.coordinator.gradient import UnitGradient
from tests.training.ranks import Ranks

FEATURES, CLASSES = 5, 3
Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def dataset(examples: int, seed: int = 0) -> TensorDataset:
    """Random features (examples, 5) and classes that depend on them, and each example's own number."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(examples, FEATURES, generator=generator)
    classes = (features @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)
    return TensorDataset(features, classes, torch.arange(examples))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


def cross_entropy(model: nn.Module, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(features), classes)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05)


def horovod(ranks: Ranks, optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """The plain Horovod optimizer, its operations named after the check; without Horovod the optimizer itself."""
    if ranks.hvd is None:
        return optimizer
    named = [(f"{ranks.prefix}.{name}", parameter) for name, parameter in model.named_parameters()]
    wrapped: torch.optim.Optimizer = ranks.hvd.DistributedOptimizer(optimizer, named, **options)
    return wrapped


@dataclass
class Unit:
    """What the session was given for one unit."""

    epoch: int
    position: int
    unit: int
    gradient: torch.Tensor | None
    """The vector that is balanced; the sketch that measures where none is."""
    passes: int


@dataclass
class Job:
    """One rank's training."""

    ranks: Ranks
    data: TensorDataset
    model: nn.Module
    sampler: GraBSampler
    loader: DataLoader[Any]
    optimizer: GraBOptimizer
    loss: Loss = cross_entropy
    units: list[Unit] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)
    """Examples of every batch, in the order in which they came."""
    orders: dict[int, np.ndarray] = field(default_factory=dict)
    """All ranks' orders (W, n) of every epoch that had a unit."""
    references: list[torch.Tensor] = field(default_factory=list)

    def record(self) -> None:
        """Note every unit from now on."""
        session, original = self.optimizer._session, self.optimizer._session.unit

        def unit(gradient: UnitGradient | None, passes: int = 1) -> None:
            seen = None if gradient is None else gradient.vector if gradient.vector is not None else gradient.measured
            kept = None if seen is None else seen.detach().cpu().clone()
            original(gradient, passes)
            book = self.sampler.book
            place = book.position - 1
            self.orders[book.epoch] = book.orders.copy()
            self.units.append(Unit(book.epoch, place, int(book.order[place]), kept, passes))

        session.unit = unit

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for features, classes, numbers in self.loader:
            self.seen.append(numbers.tolist())
            yield features, classes

    def epoch(self, compare: bool = False) -> None:
        """An ordinary epoch: a step a unit."""
        for features, classes in self.batches():
            self.train(features, classes, compare)

    def train(self, features: torch.Tensor, classes: torch.Tensor, compare: bool = False) -> None:
        self.optimizer.zero_grad()
        if compare:
            self.refer(features, classes)
        loss = self.loss(self.model, features, classes)
        loss.backward()
        self.optimizer.step()
        self.optimizer.log(loss=loss)

    def refer(self, features: torch.Tensor, classes: torch.Tensor) -> None:
        """Note the gradient that plain autograd gives for this batch."""
        self.references.append(plain_gradient(self.model, self.loss, features, classes))

    def check_captured(self) -> None:
        """What was captured is what plain autograd gives, and (with several ranks) not what another rank captured."""
        captured = [unit.gradient for unit in self.units]
        assert len(captured) == len(self.references), f"{len(captured)} units, {len(self.references)} references"
        for number, (mine, plain) in enumerate(zip(captured, self.references, strict=True)):
            assert mine is not None
            views = self.optimizer._session.parts.views
            vector, measured = views.of(plain)
            expected = vector if views.balanced else measured
            assert expected is not None
            # The sketch that measures may have the opposite sign, as long as it always has.
            same = torch.equal(mine, expected) or (not views.balanced and torch.allclose(mine.abs(), expected.abs(), atol=1e-6))
            assert same, f"unit {number}: {mine} is not {expected}"
        first = self.ranks.everyone(captured[0].tolist())
        assert len({tuple(vector) for vector in first}) == self.ranks.size, "ranks with different data captured the same vector"
        assert any(bool(vector.abs().sum() > 0) for vector in self.references)

    def gradients(self, epoch: int) -> np.ndarray:
        """(n, d) float32: this rank's recorded gradients of an epoch, by unit; unseen ones are zero."""
        matrix = np.zeros((self.sampler.units, self.optimizer._session.parts.format.width), dtype=np.float32)
        for unit in self.units:
            if unit.epoch == epoch and unit.gradient is not None:
                matrix[unit.unit] = unit.gradient.numpy()
        return matrix

    def all_gradients(self, epoch: int) -> np.ndarray:
        """(W, n, d): of all ranks."""
        return np.stack(self.ranks.everyone(self.gradients(epoch)))

    def weights(self) -> list[float]:
        return flat(self.model)


def flat(model: nn.Module) -> list[float]:
    values: list[float] = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()
    return values


def plain_gradient(model: nn.Module, loss: Loss, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """(d,) float32, parameters sorted by name: by torch.autograd.grad on a copy of the model."""
    twin = copy.deepcopy(model)
    names = dict(sorted((name, parameter) for name, parameter in twin.named_parameters() if parameter.requires_grad))
    found = torch.autograd.grad(loss(twin, features, classes), list(names.values()), allow_unused=True)
    pieces = [
        torch.zeros(parameter.numel()) if gradient is None else gradient.to_dense().reshape(-1)
        for parameter, gradient in zip(names.values(), found, strict=True)
    ]
    return torch.cat(pieces)


def build(
    ranks: Ranks,
    order: Any = "cd-grab",
    *,
    examples: int = 50,
    batch: int = 3,
    data: TensorDataset | None = None,
    model: nn.Module | None = None,
    base: Callable[[Any], torch.optim.Optimizer] = sgd,
    options: dict[str, Any] | None = None,
    loader: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    loss: Loss = cross_entropy,
    record: bool = True,
    **grab: Any,
) -> Job:
    """Everything that a training script makes; ``examples`` is for two ranks and grows with their number."""
    data = data or dataset(max(examples * ranks.size // 2, ranks.size))
    model = model or network()
    sampler = GraBSampler(data, batch, config=GraBConfig(**{"order": order, "seed": 3, "compression": "none", **(config or {})}))
    feed = DataLoader(data, batch_sampler=sampler, **(loader or {}))
    inner = horovod(ranks, base([p for p in model.parameters() if p.requires_grad]), model, **(options or {}))
    optimizer = GraBOptimizer(inner, sampler, model, **grab)
    ranks.optimizers.append(optimizer)
    job = Job(ranks, data, model, sampler, feed, optimizer, loss)
    if record:
        job.record()
    return job

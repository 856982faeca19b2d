"""The captured gradient is what plain autograd gives for the unit, on every rank, whatever Horovod does with it afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hvdgrab.errors import UsageError
from tests.training.jobs import CLASSES, FEATURES, build, cross_entropy, dataset, network, plain_gradient
from tests.training.ranks import Ranks, check


@check(0, 1, 2, 4, cases={"none": "none", "fp16": "fp16"})
def compression(ranks: Ranks, kind: str) -> None:
    options = {"compression": getattr(ranks.hvd.Compression, kind)} if ranks.hvd else {}
    job = build(ranks, options=options)
    for _ in range(2):
        job.epoch(compare=True)
    job.check_captured()
    ranks.same(job.weights())


@check(1, 2, 4, cases={"none": "none", "fp16": "fp16"})
def three_passes_a_step(ranks: Ranks, kind: str) -> None:
    options = {"compression": getattr(ranks.hvd.Compression, kind), "backward_passes_per_step": 3}
    job = build(ranks, options=options, examples=44, batch=2)
    assert job.sampler.units == 11  # the last window of an epoch is short
    for _ in range(2):
        for number, (features, classes) in enumerate(job.batches(), start=1):
            job.refer(features, classes)
            job.loss(job.model, features, classes).backward()
            if number % 3 == 0 or number == len(job.loader):
                job.optimizer.step()
                job.optimizer.zero_grad()
    job.check_captured()
    assert all(unit.passes == 1 for unit in job.units)
    assert sorted(unit.unit for unit in job.units if unit.epoch == 1) == list(range(11))
    ranks.same(job.weights())


@check(1, 2, 4)
def clipping(ranks: Ranks) -> None:
    job = build(ranks)
    for _ in range(2):
        for features, classes in job.batches():
            job.optimizer.zero_grad()
            job.refer(features, classes)
            job.loss(job.model, features, classes).backward()
            job.optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), 0.1)
            with job.optimizer.skip_synchronize():
                job.optimizer.step()
    job.check_captured()
    ranks.same(job.weights())


class Odd(nn.Module):
    """A part that nothing uses, and one of two branches."""

    def __init__(self, branch: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(FEATURES, 6)
        self.branches = nn.ModuleList(nn.Linear(6, CLASSES) for _ in range(2))
        self.unused = nn.Linear(6, 2)
        self.branch = branch

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.branches[self.branch](torch.tanh(self.first(features)))
        return out


@check(0, 1, 2, 4)
def unused_parameters(ranks: Ranks) -> None:
    job = build(ranks, model=Odd(branch=0))
    job.epoch(compare=True)
    job.check_captured()
    entry = next(entry for entry in job.optimizer._table.entries if entry.name == "unused.weight")
    assert all(not unit.gradient[entry.start : entry.start + entry.length].any() for unit in job.units)
    ranks.same(job.weights())


@check(2, 4)
def branches_that_differ_per_rank(ranks: Ranks) -> None:
    job = build(ranks, model=Odd(branch=0))
    for number, (features, classes) in enumerate(job.batches()):
        job.model.branch = (ranks.rank + number) % 2  # a stale gradient of the other branch must not stay
        job.train(features, classes, compare=True)
    job.check_captured()
    ranks.same(job.weights())


@check(1, 2, 4, cases={"dense": True, "sparse": False})
def sparse_embedding(ranks: Ranks, as_dense: bool) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.EmbeddingBag(7, 4, sparse=True, mode="sum"), nn.Linear(4, CLASSES))
    data = dataset(20 * ranks.size)
    words = torch.randint(7, (len(data), 3), generator=torch.Generator().manual_seed(5))
    data.tensors = (words, *data.tensors[1:])
    job = build(ranks, model=model, data=data, options={"sparse_as_dense": as_dense})
    for _ in range(2):
        job.epoch(compare=True)
    job.check_captured()
    ranks.same(job.weights())


@check(0, 2)
def frozen_parameters(ranks: Ranks) -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    job = build(ranks, model=model)
    before = model[0].weight.clone()
    job.epoch(compare=True)
    job.check_captured()
    assert job.optimizer._table.dimension == 6 + 6 * CLASSES + CLASSES
    assert torch.equal(before, model[0].weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.encode = nn.Linear(FEATURES, FEATURES)
        self.decode = nn.Linear(FEATURES, FEATURES)
        self.decode.weight = self.encode.weight
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.decode(torch.tanh(self.encode(features)))))
        return out


@check(0, 2)
def tied_parameters(ranks: Ranks) -> None:
    job = build(ranks, model=Tied())
    job.epoch(compare=True)
    job.check_captured()
    names = [entry.name for entry in job.optimizer._table.entries]
    assert names == ["decode.bias", "encode.bias", "encode.weight", "last.bias", "last.weight"]


@check(0, 1, 2, 4)
def two_passes_a_unit(ranks: Ranks) -> None:
    options = {"backward_passes_per_step": 2} if ranks.hvd else {}
    job = build(ranks, batch=4, options=options, passes_per_unit=2)
    for _ in range(2):
        for features, classes in job.batches():
            job.optimizer.zero_grad()
            halves = list(zip(features.tensor_split(2), classes.tensor_split(2), strict=True))
            for part in halves:
                job.refer(*part)
                job.loss(job.model, *part).backward()
            second = job.references.pop()
            job.references[-1] = job.references[-1] + second
            job.optimizer.step()
    job.check_captured()
    assert all(unit.passes == 2 for unit in job.units)
    ranks.same(job.weights())


@check(0, 2)
def two_passes_over_one_graph(ranks: Ranks) -> None:
    options = {"backward_passes_per_step": 2} if ranks.hvd else {}
    job = build(ranks, options=options, passes_per_unit=2)
    for features, classes in job.batches():
        job.optimizer.zero_grad()
        loss = job.loss(job.model, features, classes)
        loss.backward(retain_graph=True)
        (2 * loss).backward()
        job.references.append(_scaled_sum(job.model, features, classes))
        job.optimizer.step()
    job.check_captured()


def _scaled_sum(model: nn.Module, features: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    once = plain_gradient(model, cross_entropy, features, classes)
    twice = plain_gradient(model, lambda *args: 2 * cross_entropy(*args), features, classes)
    return once + twice


class Checkpointed(nn.Module):
    """Activations are computed again in the backward pass; ``around`` says in which parts of the model."""

    def __init__(self, reentrant: bool, around: str) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.parts = nn.ModuleList([nn.Linear(FEATURES, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)])
        self.reentrant, self.around = reentrant, around

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out = features.requires_grad_()
        for number, part in enumerate(self.parts):
            again = str(number) in self.around
            out = torch.tanh(checkpoint(part, out, use_reentrant=self.reentrant) if again else part(out))
        return out


@check(0, 2)
def checkpointing_without_reentry(ranks: Ranks) -> None:
    job = build(ranks, model=Checkpointed(reentrant=False, around="012"))
    job.epoch(compare=True)
    job.check_captured()


@check(0, 2, cases={"first": "0", "middle": "1", "last": "2", "all": "012"})
def checkpointing_with_reentry_is_refused(ranks: Ranks, around: str) -> None:
    job = build(ranks, model=Checkpointed(reentrant=True, around=around))
    features, classes = next(job.batches())
    with ranks.refused(UsageError, "use_reentrant=False"):
        job.loss(job.model, features, classes).backward()
    if ranks.hvd:
        job.optimizer.synchronize()  # what Horovod had begun


class Breaks(torch.autograd.Function):
    """An identity whose backward pass fails."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("broken off")


@check(0, 2)
def exception_inside_backward(ranks: Ranks) -> None:
    job = build(ranks, order="cd-grab")
    for number, (features, classes) in enumerate(job.batches()):
        if number == 3:
            hidden = Breaks.apply(torch.tanh(job.model[0](features)))
            with ranks.refused(ArithmeticError, "broken off"):
                nn.functional.cross_entropy(job.model[2](hidden), classes).backward()
            job.optimizer.synchronize()
            job.optimizer.zero_grad()
            job.optimizer.skip_unit()
            continue
        job.train(features, classes, compare=True)
    skipped = job.units.pop(3)
    assert skipped.gradient is None
    job.check_captured()
    job.epoch(compare=True)
    job.check_captured()
    epochs = [sorted(unit.unit for unit in [*job.units, skipped] if unit.epoch == epoch) for epoch in (0, 1)]
    assert epochs == [list(range(job.sampler.units))] * 2
    ranks.same(job.weights())


@check(0, 2)
def one_parameter_and_an_empty_group(ranks: Ranks) -> None:
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, CLASSES, bias=False)
    base = torch.optim.SGD([{"params": [], "lr": 0.5}, {"params": list(model.parameters())}], lr=0.1)
    job = build(ranks, model=model, base=lambda parameters: base)
    job.epoch(compare=True)
    job.check_captured()

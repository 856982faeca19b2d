"""Under an order that looks at no gradients the wrapper changes nothing: the weights are bit for bit the plain optimizer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hvdgrab import GraBConfig, GraBSampler
from tests.training.jobs import build, cross_entropy, dataset, flat, horovod, network
from tests.training.ranks import Ranks, check

BASES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def plain_batches(ranks: Ranks, order: Any, examples: int, epochs: int) -> list[list[list[int]]]:
    """The batches of every epoch, from a sampler that no optimizer belongs to."""
    sampler = GraBSampler(dataset(examples), 3, config=GraBConfig(order=order, seed=3))
    return [list(sampler) for _ in range(epochs)]


def plain_run(ranks: Ranks, base: Any, order: Any, step: Callable[[Any, Any], None], options: Any) -> list[float]:
    """The same script without hvdgrab's optimizer; ``step`` does what follows ``backward()``."""
    data, model = dataset(25 * ranks.size), network()
    ranks.prefix += "+"
    optimizer = horovod(ranks, base(model.parameters()), model, **options)
    for epoch in plain_batches(ranks, order, len(data), 2):
        for batch in epoch:
            features, classes, _ = data[batch]
            optimizer.zero_grad()
            cross_entropy(model, features, classes).backward()
            step(optimizer, model)
    return flat(model)


def plain_step(optimizer: Any, model: torch.nn.Module) -> None:
    optimizer.step()


def clip_and_step(optimizer: Any, model: torch.nn.Module) -> None:
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
    with optimizer.skip_synchronize():
        optimizer.step()


def compare(ranks: Ranks, base: Any, order: Any, step: Any, **options: Any) -> None:
    job = build(ranks, order, base=base, options=options)
    for _ in range(2):
        for features, classes in job.batches():
            job.optimizer.zero_grad()
            job.loss(job.model, features, classes).backward()
            step(job.optimizer, job.model)
    assert [numbers for epoch in plain_batches(ranks, order, len(job.data), 2) for numbers in epoch] == job.seen
    plain = plain_run(ranks, base, order, step, options)
    assert plain != flat(network()), "nothing was trained"
    assert job.weights() == plain
    ranks.same(plain)


@check(0, 2, cases={name: name for name in BASES}, soak=(1, 4))
def plain_steps(ranks: Ranks, name: str) -> None:
    compare(ranks, BASES[name], "rr", plain_step)


@check(2, cases={name: name for name in ("sgd", "adam")}, soak=(0, 1, 4))
def plain_steps_in_the_datasets_order(ranks: Ranks, name: str) -> None:
    compare(ranks, BASES[name], "fixed", plain_step)


@check(1, 2, 4)
def clipped_steps(ranks: Ranks) -> None:
    """Nothing is reduced twice: that would divide the gradients again, or clip what is clipped."""
    compare(ranks, BASES["momentum"], "rr", clip_and_step)


@check(2, cases={"fp16": {}, "sum": {}, "predivide": {"gradient_predivide_factor": 2.0}})
def horovod_options(ranks: Ranks, options: dict[str, Any]) -> None:
    kind = ranks.prefix.split("[")[1][:-1]
    more = {"fp16": {"compression": ranks.hvd.Compression.fp16}, "sum": {"op": ranks.hvd.Sum}}.get(kind, {})
    compare(ranks, BASES["sgd"], "rr", plain_step, **options, **more)


@check(1, 2, 4, cases={"two groups": 2, "a list": 0})
def horovod_groups(ranks: Ranks, groups: int) -> None:
    """Gradients that Horovod reduces in groups are captured and averaged like others."""
    job_model, plain_model = network(), network()
    bases = BASES["momentum"]
    job = build(
        ranks, "rr", model=job_model, base=bases, options={"groups": groups or [list(job_model.parameters())[:2]]}
    )
    for _ in range(2):
        job.epoch(compare=True)
    job.check_captured()
    ranks.prefix += "+"
    optimizer = horovod(ranks, bases(plain_model.parameters()), plain_model)
    for epoch in plain_batches(ranks, "rr", len(job.data), 2):
        for batch in epoch:
            features, classes, _ = job.data[batch]
            optimizer.zero_grad()
            cross_entropy(plain_model, features, classes).backward()
            optimizer.step()
    assert torch.allclose(torch.tensor(job.weights()), torch.tensor(flat(plain_model)), atol=1e-6)
    ranks.same(job.weights())

"""Loops as scripts really write them: workers, probing, epochs left early, and what is noticed when the script is wrong."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from hvdgrab import GraBOptimizer, StopSignal
from hvdgrab.errors import UsageError
from tests.training.jobs import Job, build, horovod, network, sgd
from tests.training.ranks import Ranks, check

WORKERS: dict[str, dict[str, Any]] = {
    "none": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "fork, persistent": {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True, "prefetch_factor": 4},
}
FORKSERVER = {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True}


def permutations(job: Job, epochs: int) -> None:
    """Every example once an epoch over all ranks."""
    n = job.sampler.units
    for epoch in range(epochs):
        mine = list(itertools.chain.from_iterable(job.seen[epoch * n : (epoch + 1) * n]))
        everyone = sorted(itertools.chain.from_iterable(job.ranks.everyone(mine)))
        assert everyone == list(range(len(job.data))), f"epoch {epoch}"


@check(2, cases=WORKERS)
def workers(ranks: Ranks, loader: dict[str, Any]) -> None:
    job = build(ranks, examples=53, loader=loader)
    assert len(job.data) % job.sampler.batch_size  # units are of unequal size
    for epoch in range(3):
        job.sampler.set_epoch(epoch)
        job.epoch(compare=True)
    permutations(job, 3)
    job.check_captured()
    ranks.same(job.weights())


@check(soak=(2,))
def workers_of_a_forkserver(ranks: Ranks) -> None:
    workers(ranks, FORKSERVER)


@check(0)
def workers_without_horovod(ranks: Ranks) -> None:
    for kind in ("none", "fork"):
        job = build(ranks, examples=53, loader=WORKERS[kind])
        for _ in range(3):
            job.epoch(compare=True)
        permutations(job, 3)
        job.check_captured()


@check(soak=(4,))
def workers_on_four_ranks(ranks: Ranks) -> None:
    job = build(ranks, examples=53, loader=WORKERS["fork, persistent"])
    for _ in range(3):
        job.epoch(compare=True)
    permutations(job, 3)
    job.check_captured()


@check(0, 2)
def paused_passes_do_not_count(ranks: Ranks) -> None:
    job = build(ranks, options={"backward_passes_per_step": 2} if ranks.hvd else {})
    for features, classes in job.batches():
        job.optimizer.zero_grad()
        job.refer(features, classes)
        with job.optimizer.paused():
            job.loss(job.model, features, classes).backward()
        job.loss(job.model, features, classes).backward()
        job.optimizer.step()
    job.check_captured()
    assert len(job.units) == job.sampler.units


@check(0, 2)
def a_forgotten_evaluation_pass(ranks: Ranks) -> None:
    job = build(ranks)
    with ranks.refused(UsageError, "more backward passes than units", "optimizer.paused()", "passes_per_unit=k"):
        for features, classes in job.batches():
            job.train(features, classes)
            job.train(features, classes)


@check(0, 2)
def too_many_passes_a_unit(ranks: Ranks) -> None:
    """passes_per_unit=1, but the script makes two."""
    job = build(ranks, options={"backward_passes_per_step": 2} if ranks.hvd else {})
    with ranks.refused(UsageError, "more backward passes than units", "passes_per_unit"):
        for features, classes in job.batches():
            for part in zip(features.tensor_split(2), classes.tensor_split(2), strict=True):
                job.loss(job.model, *part).backward()
            job.optimizer.step()


@check(0, 2, cases={"of two": (2, 1), "of three": (3, 2), "of three, one": (3, 1)})
def too_few_passes_a_unit(ranks: Ranks, case: tuple[int, int]) -> None:
    """passes_per_unit says more than the script makes: noticed when the next epoch begins."""
    said, made = case
    job = build(ranks, passes_per_unit=said, options={"backward_passes_per_step": made} if ranks.hvd else {})

    def epoch() -> None:
        for features, classes in job.batches():
            job.optimizer.zero_grad()
            for part in zip(features.tensor_split(made), classes.tensor_split(made), strict=True):
                job.loss(job.model, *part).backward()
            job.optimizer.step()

    epoch()
    with ranks.refused(UsageError, f"passes_per_unit is {said}", f"passes_per_unit={made}"):
        epoch()


@check(0, 2, cases={"before any batch": False, "after a peek": True})
def a_loader_with_another_sampler(ranks: Ranks, peek: bool) -> None:
    job = build(ranks)
    if peek:
        next(iter(job.loader))
    other = DataLoader(job.data, batch_size=3)
    words = ("more backward passes than units",) if peek else ("no batch was drawn from GraBSampler", "batch_sampler=sampler")
    with ranks.refused(UsageError, *words):
        for features, classes, _ in other:
            job.train(features, classes)


@check(0, 1, 2, cases={"cd-grab": "cd-grab", "rr": "rr"})
def unfreezing_is_noticed(ranks: Ranks, order: Any) -> None:
    """And the advice works: both optimizers made again over the same sampler, the order goes on."""
    model = network()
    model[0].requires_grad_(False)
    job = build(ranks, order, model=model, base=lambda _: sgd(model.parameters()))
    job.epoch()
    model[0].requires_grad_(True)
    with ranks.refused(UsageError, "'0.", "unfrozen", "GraBOptimizer again"):
        job.epoch()
    second = again(job)
    for _ in range(2):
        second.epoch(compare=True)
    second.check_captured()
    first_epoch = [unit for unit in second.units if unit.epoch == second.units[0].epoch]
    assert sorted(unit.unit for unit in first_epoch) == list(range(job.sampler.units))
    assert second.optimizer._table.dimension > job.optimizer._table.dimension
    ranks.same(job.weights())


def again(job: Job) -> Job:
    """Close the optimizer, and make everything but sampler, loader and model again."""
    job.optimizer.synchronize()
    job.optimizer.close()
    ranks = job.ranks
    ranks.prefix += "+"
    optimizer = GraBOptimizer(horovod(ranks, sgd(job.model.parameters()), job.model), job.sampler, job.model)
    ranks.optimizers.append(optimizer)
    optimizer.zero_grad()
    second = Job(ranks, job.data, job.model, job.sampler, job.loader, optimizer)
    second.record()
    return second


@check(0, 2)
def a_new_optimizer_in_mid_epoch(ranks: Ranks) -> None:
    """close() ends the epoch that is under way; the new optimizer begins the next one, and gradients are averaged once."""
    job = build(ranks, examples=44, batch=2)
    for features, classes in job.batches():
        job.train(features, classes)
        if len(job.units) == 5:
            break
    second = again(job)
    for _ in range(2):
        second.epoch(compare=True)
    second.check_captured()
    assert [unit.epoch for unit in second.units] == [1] * 11 + [2] * 11
    ranks.same(job.weights())


@check(0, 2)
def freezing_counts_as_zero(ranks: Ranks) -> None:
    job = build(ranks)
    job.epoch(compare=True)
    bias = job.model[0].bias
    bias.requires_grad_(False)
    job.optimizer.zero_grad()
    entry = next(entry for entry in job.optimizer._table.entries if entry.name == "0.bias")
    before = len(job.units)
    job.epoch()
    assert all(not unit.gradient[entry.start : entry.start + entry.length].any() for unit in job.units[before:])
    ranks.same(job.weights())


@check(0, 2)
def added_parameters_are_noticed(ranks: Ranks) -> None:
    """Behind the wrapper's back; `add_param_group` on it is refused at once."""
    job = build(ranks)
    job.epoch()
    job.optimizer._inner.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    with ranks.refused(UsageError, "parameters were added", "GraBOptimizer again"):
        job.epoch()


@check(0, 2, 4, cases={"cd-grab": "cd-grab", "id-grab": "id-grab", "rr": "rr"})
def epochs_left_early(ranks: Ranks, order: Any) -> None:
    loader = {"num_workers": 1} if ranks.size == 2 and order == "cd-grab" else {}
    job = build(ranks, order, examples=44, batch=2, loader=loader)
    for stop in (5, 4, 1, 11):
        for number, (features, classes) in enumerate(job.batches(), start=1):
            job.train(features, classes)
            if number == stop:
                break
    job.epoch()
    counts = [sum(unit.epoch == epoch for unit in job.units) for epoch in range(5)]
    assert counts == [5, 4, 1, 11, 11]
    for epoch in (3, 4):
        assert sorted(unit.unit for unit in job.units if unit.epoch == epoch) == list(range(11))
    assert all(sorted(orders[ranks.rank].tolist()) == list(range(11)) for orders in job.orders.values())
    ranks.same({epoch: orders.tolist() for epoch, orders in job.orders.items()})
    ranks.same(job.weights())


@check(0, 2)
def units_without_a_pass(ranks: Ranks) -> None:
    """Every rank skips the same batches: their units keep free slots, and no pair is lost to a wrong count."""
    job = build(ranks, examples=44, batch=2)
    for _ in range(2):
        for number, (features, classes) in enumerate(job.batches()):
            if number in (2, 7):
                job.optimizer.skip_unit()
            else:
                job.train(features, classes)
    assert [unit.unit for unit in job.units if unit.epoch == 0] == job.orders[0][ranks.rank].tolist()
    assert sorted(unit.unit for unit in job.units if unit.epoch == 1) == list(range(11))
    ranks.same(job.weights())


@check(0, 2)
def a_second_iterator(ranks: Ranks) -> None:
    job = build(ranks)
    batches = job.batches()
    for _ in range(3):
        job.train(*next(batches))
    job.train(*next(iter(job.batches())))  # begins the next epoch, on all ranks
    assert job.sampler.epoch == 1
    with ranks.refused(UsageError, "a second iterator"):
        job.train(*next(batches))


@check(0, 2)
def one_rank_peeks(ranks: Ranks) -> None:
    """Iterators that are never consumed leave no trace, before training and between epochs, on one rank alone."""
    job = build(ranks, loader={"num_workers": 2, "persistent_workers": True} if ranks.hvd else {})
    if ranks.rank == 0:
        next(iter(job.loader))
    job.epoch(compare=True)
    job.check_captured()
    if ranks.rank == 0:
        next(iter(job.loader))
    job.sampler.set_epoch(1)
    job.epoch()
    assert sorted(unit.unit for unit in job.units if unit.epoch == 1) == list(range(job.sampler.units))
    job.sampler.set_epoch(2)


@check(0, 2)
def two_optimizers(ranks: Ranks) -> None:
    """Two models trained in turn, each with its own sampler, as a GAN does."""
    jobs = []
    for _ in range(2):
        ranks.prefix += "+"
        jobs.append(build(ranks, model=network(len(jobs))))
    for _ in range(2):
        for pair in zip(*(job.batches() for job in jobs), strict=True):
            for job, batch in zip(jobs, pair, strict=True):
                job.train(*batch, compare=True)
    for job in jobs:
        job.check_captured()
        ranks.same(job.weights())


@check(0, 2)
def wrong_epoch(ranks: Ranks) -> None:
    job = build(ranks)
    job.sampler.set_epoch(0)
    with ranks.refused(UsageError, "set_epoch(1)", "epoch 0", "sampler.next_epoch"):
        job.sampler.set_epoch(1)
    job.epoch()
    job.sampler.set_epoch(1)
    job.epoch()


@check(2)
def a_model_that_is_not_trained(ranks: Ranks) -> None:
    """Backward passes through a copy of the model: the optimizer would step on nothing."""
    job = build(ranks)
    twin = network()
    twin.load_state_dict(job.model.state_dict())
    for mine, other in zip(job.model.parameters(), twin.parameters(), strict=True):
        mine.grad = torch.ones_like(mine)
        del other
    with ranks.refused(UsageError, "no backward pass has reached"):
        job.optimizer.step()


@check(0)
def fewer_examples_than_ranks(ranks: Ranks) -> None:
    from hvdgrab import GraBSampler
    from tests.training.jobs import dataset

    with ranks.refused(UsageError, "3 examples for 4 ranks"):
        GraBSampler(dataset(3), 2, rank=0, size=4)
    assert "horovod.torch" not in sys.modules


@check(1, 2, soak=(4,))
def a_signal_to_one_rank_stops_all_after_the_same_step(ranks: Ranks) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}
    stop = StopSignal()
    try:
        job = build(ranks)
        stopped = None
        for step, batch in enumerate(job.batches()):
            job.train(*batch)
            if step == 3 and ranks.rank == ranks.size - 1:
                os.kill(os.getpid(), signal.SIGUSR1)
                assert stop.requested
            if stop.agreed():
                stopped = step
                break
        assert stopped in (3, 4), stopped
        ranks.same(stopped)
        assert stop.agreed(), "it stays said"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

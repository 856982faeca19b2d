"""Saved states: continuing is bit for bit the uninterrupted run; rank 0 alone may load one; foreign ones are refused."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdgrab import GraBConfig, GraBOptimizer, GraBSampler
from hvdgrab.errors import ConsistencyError, StateError
from hvdgrab.report import metrics
from tests.training.checks_weights import BASES
from tests.training.jobs import FEATURES, Job, build, dataset, horovod, network, sgd
from tests.training.ranks import Ranks, check

EPOCHS = 3
Saved = dict[str, Any]


def stored(job: Job) -> Saved:
    """Model and optimizer, through torch.save and torch.load as a checkpoint takes them."""
    file = io.BytesIO()
    torch.save({"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}, file)
    file.seek(0)
    read: Saved = torch.load(file, weights_only=True)
    return read


def load(job: Job, saved: Saved) -> None:
    job.model.load_state_dict(saved["model"])
    job.optimizer.load_state_dict(saved["optimizer"])


def run(job: Job, save_at: tuple[tuple[int, int], ...] = ()) -> list[Saved]:
    """Train to the end of the last epoch; save after ``position`` units of ``epoch``, n meaning after the whole epoch."""
    states = []
    for epoch in range(job.sampler.next_epoch, EPOCHS):
        job.sampler.set_epoch(epoch)
        start = job.sampler.book.position if job.sampler.epoch == epoch else 0
        for done, (features, classes) in enumerate(job.batches(), start=start + 1):
            job.train(features, classes)
            if (epoch, done) in save_at:
                states.append(stored(job))
    return states


def trail(job: Job, epoch: int, position: int) -> list[tuple[Any, ...]]:
    """What was seen from (epoch, position) on, with the gradients."""
    return [
        (unit.epoch, unit.position, unit.unit, unit.gradient.tolist() if unit.gradient is not None else None)
        for unit in job.units
        if (unit.epoch, unit.position) >= (epoch, position)
    ]


def lines(path: Any) -> dict[int, dict[str, Any]]:
    """The columns of every epoch that do not depend on the clock."""
    clock = {"step_ms", "ordering_ms", "seconds", "time"}
    records = metrics.latest(metrics.read(path).records)
    return {one.epoch: {key: value for key, value in dataclasses.asdict(one).items() if key not in clock} for one in records}


CONTINUE = {
    "cd-grab": ("cd-grab", 1, 0, (1, 2, 4)),
    "cd-grab, three pairs": ("cd-grab", 3, 0, (2,)),
    "cd-grab, workers": ("cd-grab", 1, 2, (2,)),
    "cd-grab, three pairs, workers": ("cd-grab", 3, 2, (2,)),
    "id-grab": ("id-grab", 1, 0, (2,)),
    "id-grab, three pairs, workers": ("id-grab", 3, 2, (2,)),
    "rr": ("rr", 1, 0, (2,)),
    "rr, workers": ("rr", 1, 2, (2,)),
    "reshuffle": ("reshuffle", 1, 0, (2,)),
    "reshuffle, workers": ("reshuffle", 1, 2, (2,)),
    "flipflop": ("flipflop", 1, 0, (2,)),
}


def continuation(ranks: Ranks, case: tuple[str, int, int, tuple[int, ...]]) -> None:
    order, pairs, workers, _ = case
    places = ((0, 11), (1, 4), (1, 5), (1, 10))
    if workers:  # starting them is what costs
        places = ((1, 4), (1, 9)) if order == "cd-grab" else ((1, 5),)
    continuation_of(ranks, order, {"pairs_per_message": pairs}, places, workers)


def continuation_of(
    ranks: Ranks, order: str, config: dict[str, Any], places: tuple[tuple[int, int], ...], workers: int = 0
) -> None:
    """A run that was saved at each of ``places`` goes on from there as the uninterrupted one did."""
    options: dict[str, Any] = {"base": BASES["momentum"], "config": config, "examples": 44, "batch": 2}
    loader = {"num_workers": workers}
    n, top = 11, ranks.directory
    ranks.environment(HVDGRAB_JOB_DIR=str(top))
    whole = build(ranks, order, **options)
    assert whole.sampler.units == n
    states = run(whole, places)
    whole.optimizer.close()
    expected = lines(top / "metrics.jsonl") if ranks.rank == 0 else {}
    for number, ((epoch, position), state) in enumerate(zip(places, states, strict=True)):
        ranks.prefix += "+"
        later = top / f"part-{number}"
        later.mkdir(exist_ok=True)
        ranks.environment(HVDGRAB_JOB_DIR=str(later))
        job = build(ranks, order, model=network(seed=99), loader=loader, **options)
        load(job, state)
        run(job)
        job.optimizer.close()
        assert trail(job, 0, 0) == trail(whole, epoch, position), f"saved at epoch {epoch}, unit {position}"
        assert job.weights() == whole.weights(), f"saved at epoch {epoch}, unit {position}"
        first = 1 if position == n else 2
        if ranks.rank == 0:
            found = lines(later / "metrics.jsonl")
            assert sorted(found) == [1, 2]
            assert all(found[e] == expected[e] for e in range(first, EPOCHS)), f"{found}\nare not\n{expected}"
            for column in ("order_hash", "pairs", "order", "bytes_dense"):
                assert found[1][column] == expected[1][column], column
            assert position == n or found[1]["herding_l2"] is None  # a part of an epoch has no bound


for _name, _case in CONTINUE.items():

    def _continues(ranks: Ranks, case: Any) -> None:
        continuation(ranks, case)

    _continues.__name__ = "continues"
    _soak = tuple({2, 4} - set(_case[3])) if "workers" not in _name else ()
    check(*_case[3], cases={_name: _case}, soak=_soak)(_continues)


@check(0, 1)
def grab_continues(ranks: Ranks) -> None:
    continuation(ranks, ("grab", 1, 0, ()))


@check(0)
def cd_grab_continues_without_horovod(ranks: Ranks) -> None:
    continuation(ranks, ("cd-grab", 3, 2, ()))


@check(2, 4)
def another_designated_rank_continues(ranks: Ranks) -> None:
    options: dict[str, Any] = {"config": {"designated_rank": 1}, "examples": 44, "batch": 2}
    whole = build(ranks, **options)
    states = run(whole, ((1, 4), (1, 5)))
    for state in states:
        ranks.prefix += "+"
        job = build(ranks, **options)
        load(job, state)
        run(job)
        assert job.weights() == whole.weights()


@check(2, 4, cases={"epoch's start": (0, 11), "even": (1, 4), "odd": (1, 7)})
def rank_0_alone(ranks: Ranks, place: tuple[int, int]) -> None:
    """Its state reaches the others at the first unit; every epoch is a permutation, and all hold the same orders."""
    options: dict[str, Any] = {"examples": 44, "batch": 2}
    first = build(ranks, **options)
    state = run(first, (place,))[0]
    ranks.prefix += "+"
    job = build(ranks, **options)
    if ranks.rank == 0:
        load(job, state)
    ranks.hvd.broadcast_parameters(job.model.state_dict(), root_rank=0)
    ranks.hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    epoch, start = (1, 0) if place == (0, 11) else place
    for _ in range(epoch, EPOCHS):
        for features, classes in job.batches():
            job.train(features, classes)
    counts = [[unit.unit for unit in job.units if unit.epoch == e] for e in range(EPOCHS)]
    assert len(counts[epoch]) == 11 - start
    assert sorted(counts[2]) == list(range(11))
    if start == 0:
        assert sorted(counts[1]) == list(range(11))
    if ranks.rank == 0:
        assert counts[epoch] == first.orders[epoch][0][start:].tolist()
    ranks.same({e: orders.tolist() for e, orders in job.orders.items() if e > epoch})
    ranks.same(job.weights())


@check(2)
def rank_0_alone_into_the_sampler(ranks: Ranks) -> None:
    """`sampler.load_state_dict` before the optimizer is made."""
    first = build(ranks, examples=44, batch=2)
    first.epoch()
    state = first.sampler.state_dict()
    ranks.prefix += "+"
    data, model = dataset(44), network()
    sampler = GraBSampler(data, 2, config=GraBConfig(order="cd-grab", seed=3))
    if ranks.rank == 0:
        sampler.load_state_dict(state)
        assert sampler.next_epoch == 1
    optimizer = GraBOptimizer(horovod(ranks, sgd(model.parameters()), model), sampler, model)
    ranks.optimizers.append(optimizer)
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    job = Job(ranks, data, model, sampler, loader, optimizer)
    job.record()
    job.epoch()
    assert sorted(unit.unit for unit in job.units) == list(range(11))
    assert {unit.epoch for unit in job.units} == {1}
    if ranks.rank == 0:
        assert [unit.unit for unit in job.units] == state["orders"][0].tolist()


@check(2)
def rank_1_alone_is_refused(ranks: Ranks) -> None:
    first = build(ranks)
    first.epoch()
    state = first.optimizer.state_dict()
    ranks.prefix += "+"
    job = build(ranks)
    if ranks.rank == 1:
        job.optimizer.load_state_dict(state)
    with ranks.refused(ConsistencyError, "rank 1 loaded a state, but rank 0 did not"):
        job.epoch()


@check(2)
def states_of_different_moments_are_refused(ranks: Ranks) -> None:
    first = build(ranks)
    states = run(first, ((0, 3), (1, 3)))
    ranks.prefix += "+"
    job = build(ranks)
    job.optimizer.load_state_dict(states[ranks.rank]["optimizer"])
    with ranks.refused(ConsistencyError, "epoch 0, unit 3", "epoch 1, unit 3"):
        job.epoch()


@check(0, 2)
def foreign_states_are_refused(ranks: Ranks) -> None:
    """With both values, and before anything is changed."""

    def state_of(**options: Any) -> Saved:
        ranks.prefix += "+"
        other = build(ranks, **options)
        other.epoch()
        return other.optimizer.state_dict()

    wider = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 3))
    mine = state_of()
    size, units = ranks.size, build(ranks).sampler.units
    foreign: list[tuple[Saved, tuple[str, ...]]] = [
        (state_of(batch=5), ("units per rank", str(units), str(-(-25 // 5)))),
        (state_of(order="id-grab"), ("order", "'id-grab'", "'cd-grab'")),
        (_with(mine, seed=4), ("seed", "4", "3")),
        (state_of(model=wider), ("trainable parameters",)),
        (_with_facts(mine, examples=51), ("number of examples", "51")),
        (_with(mine, size=size + 1), ("number of ranks", str(size), str(size + 1))),
        (_with(mine, version=77), ("version 77", "version 2")),
        ({**mine, "hvdgrab": {"nothing": 1}}, ("no version",)),
        ({**mine, "hvdgrab": {key: value for key, value in mine["hvdgrab"].items() if key != "signs"}}, ("signs missing",)),
    ]
    ranks.prefix += "+"
    job = build(ranks)
    for state, words in foreign:
        with ranks.refused(StateError, *words):
            job.optimizer.load_state_dict(state)
    job.epoch(compare=True)
    job.check_captured()
    assert {unit.epoch for unit in job.units} == {0}


def _with(state: Saved, **changes: Any) -> Saved:
    return {**state, "hvdgrab": {**state["hvdgrab"], **changes}}


def _with_facts(state: Saved, **changes: Any) -> Saved:
    return _with(state, facts={**state["hvdgrab"]["facts"], **changes})


@check(0, 2)
def loading_between_epochs_goes_back(ranks: Ranks) -> None:
    """A state may be loaded again in the run that made it: here the second epoch is run twice, alike."""
    job = build(ranks, base=BASES["momentum"])
    job.epoch()
    saved = stored(job)
    job.epoch()
    once = job.weights(), trail(job, 1, 0)
    load(job, saved)
    job.units.clear()
    job.epoch()
    assert (job.weights(), trail(job, 1, 0)) == once
    job.epoch()
    assert [unit.epoch for unit in job.units][-1] == 2
    assert np.array_equal(np.sort(job.orders[2], axis=1), np.tile(np.arange(job.sampler.units), (ranks.size, 1)))
    ranks.same(job.weights())

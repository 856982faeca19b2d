"""Coordinators under Horovod: the orders of the literal reference, resumed runs, how often, and ranks that are not alike."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hvdgrab.errors import ConsistencyError
from tests.training.checks_orders import check_orders, coordinated, run
from tests.training.jobs import build, dataset
from tests.training.ranks import Ranks, check

COORDINATORS = {name: name for name in ("replicated", "sharded")}


@check(1, 2, 4, cases=COORDINATORS)
def coordinator(ranks: Ranks, name: str) -> None:
    check_orders(run(ranks, "cd-grab", 3, config={"coordinator": name}, examples=44, batch=2), 3, coordinated)


@check(2, cases=COORDINATORS)
def coordinator_continues(ranks: Ranks, name: str) -> None:
    """State saved in the middle of an epoch on every rank, loaded into a new run."""
    options: dict[str, Any] = {"config": {"coordinator": name, "pairs_per_message": 2}, "examples": 44, "batch": 2}
    whole = build(ranks, **options)
    saved: tuple[dict[str, Any], dict[str, Any]] | None = None
    for epoch in range(3):
        for number, (features, classes) in enumerate(whole.batches()):
            whole.train(features, classes)
            if (epoch, number) == (1, 6):
                model = {key: value.clone() for key, value in whole.model.state_dict().items()}
                saved = model, whole.optimizer.state_dict()
    assert saved is not None
    again = build(ranks, **options)
    again.model.load_state_dict(saved[0])
    again.optimizer.load_state_dict(saved[1])
    while again.sampler.next_epoch < 3:
        again.epoch()
    assert [unit.unit for unit in again.units] == [unit.unit for unit in whole.units][-len(again.units) :]
    assert again.weights() == whole.weights()


@check(2)
def independent_is_id_grab(ranks: Ranks) -> None:
    jobs = [run(ranks, "id-grab", 3), run(ranks, "id-grab", 3, config={"coordinator": "independent"})]
    assert np.array_equal(*(job.sampler.book.orders for job in jobs))


@check(2, cases=COORDINATORS | {"designated": "designated"})
def a_slow_rank(ranks: Ranks, name: str) -> None:
    """It sleeps in every tenth step; its orders, and those of the others, are what they would have been."""
    options: dict[str, Any] = {"config": {"coordinator": name, "pairs_per_message": 2}, "data": dataset(80), "batch": 2}
    plain = run(ranks, "cd-grab", 2, **options)
    slow = build(ranks, "cd-grab", **options)
    for _ in range(2):
        for number, (features, classes) in enumerate(slow.batches()):
            if ranks.rank == ranks.size - 1 and number % 10 == 9:
                time.sleep(0.1)
            slow.train(features, classes)
    assert slow.weights() == plain.weights()
    assert np.array_equal(slow.orders[1], plain.orders[1])


@check(2)
def every_second_epoch(ranks: Ranks) -> None:
    job = run(ranks, "cd-grab", 5, config={"reorder": {"every": 2}}, examples=44, batch=2)
    assert np.array_equal(job.orders[1], coordinated(job.all_gradients(0), job.orders[0]))
    assert np.array_equal(job.orders[2], job.orders[1])
    assert np.array_equal(job.orders[3], coordinated(job.all_gradients(2), job.orders[2]))
    assert np.array_equal(job.orders[4], job.orders[3])


@check(2)
def a_rank_with_fewer_units(ranks: Ranks) -> None:
    """Impossible by the sampler; forced, by a dataset of its own, it is refused by name at the first unit."""
    data = dataset(40 if ranks.rank == 0 else 36)
    job = build(ranks, data=data, batch=2)
    features, classes = next(job.batches())
    with ranks.refused(ConsistencyError, "36 on rank 1, but 40 on rank 0"):
        job.loss(job.model, features, classes).backward()


@check(2)
def a_server_that_is_not_there(ranks: Ranks) -> None:
    job = build(ranks, config={"coordinator": "server"}, examples=44, batch=2)
    with ranks.refused(Exception, "hvdgrab.init() instead of hvd.init()"):
        for _ in range(2):
            job.epoch()


@check(2)
def re_ordering_every_step(ranks: Ranks) -> None:
    with ranks.refused(ValueError, "orders are made once an epoch and are fixed while it runs"):
        build(ranks, config={"reorder": {"every": "step"}})

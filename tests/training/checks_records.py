"""``metrics.jsonl``: what it says is what happened."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from hvdgrab.balance import herding_bound
from hvdgrab.compression.payload import HEADER_BYTES
from hvdgrab.config import ORDERS, SINGLE_RANK_ORDERS
from tests.training.jobs import Job, build
from tests.training.ranks import Ranks, check

COLUMNS = {
    "epoch", "order", "train_loss", "herding_l2", "herding_linf", "herding_l2_vs_random", "bytes_sent", "bytes_dense", "pairs",
    "pairs_dropped", "step_ms", "ordering_ms", "order_hash", "epochs", "ranks", "units", "seconds", "time",
}


def written(ranks: Ranks) -> list[dict[str, Any]]:
    """The lines, on every rank."""
    path = ranks.directory / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if ranks.rank == 0 else None
    found: list[dict[str, Any]] = ranks.everyone(lines)[0]
    return found


@check(0, 1, 2, 4)
def an_epoch_a_line(ranks: Ranks) -> None:
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks, total_epochs=7)
    n, d = job.sampler.units, job.optimizer._table.dimension
    losses: list[list[float]] = []
    for _ in range(3):
        losses.append([])
        for features, classes in job.batches():
            job.optimizer.zero_grad()
            loss = job.loss(job.model, features, classes)
            loss.backward()
            job.optimizer.step()
            job.optimizer.log(loss=loss, accuracy=0.25 + ranks.rank)
            losses[-1].append(loss.item())
    job.optimizer.close()
    job.optimizer.close()
    lines, size = written(ranks), ranks.size
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    everyone = np.array(ranks.everyone(losses))
    signs = size * (n // 2)
    for line in lines:
        assert set(line) == COLUMNS | {"accuracy"}
        assert line["order"] == "cd-grab"
        assert abs(line["train_loss"] - everyone[:, line["epoch"]].mean()) < 1e-6
        assert abs(line["accuracy"] - np.mean([0.25 + rank for rank in range(size)])) < 1e-12
        assert (line["ranks"], line["units"], line["epochs"]) == (size, n, 7)
        assert (line["pairs"], line["pairs_dropped"]) == (signs, 0)
        assert line["bytes_dense"] == 4 * d * signs
        # every rank but the designated one sends its differences; the designated one sends the bits to every other
        assert line["bytes_sent"] == (size - 1) * (HEADER_BYTES + 4 * d) * (n // 2) + (size - 1) * -(-signs // 8)
        assert line["herding_linf"] is None
        assert line["herding_l2"] > 0
        assert line["herding_l2_vs_random"] > 0
        assert line["ordering_ms"] > 0
        assert 0 < line["step_ms"] < 1e3 * line["seconds"]
    assert len({line["order_hash"] for line in lines}) == 3


@check(0, 1, 2, cases={order: order for order in ORDERS})
def the_order_that_really_ran(ranks: Ranks, order: Any) -> None:
    if order in SINGLE_RANK_ORDERS and ranks.size > 1:
        return
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory), HVDGRAB_GRAB=json.dumps({"order": order, "seed": 3}))
    job = build_from_environment(ranks)
    for _ in range(2):
        job.epoch()
    job.optimizer.close()
    lines = written(ranks)
    assert [line["order"] for line in lines] == [order] * 2
    gradient_order = order in ("id-grab", "cd-grab")
    assert all((line["pairs"] > 0) == gradient_order for line in lines)
    assert all(line["bytes_dense"] == 0 for line in lines) != gradient_order
    assert all(line["herding_l2"] is not None for line in lines)
    if order in ("fixed", "shuffle-once"):
        assert lines[0]["order_hash"] == lines[1]["order_hash"]


def build_from_environment(ranks: Ranks) -> Job:
    """A script that says nothing about the order: the job's YAML does."""
    from hvdgrab import GraBOptimizer, GraBSampler
    from tests.training.jobs import dataset, horovod, network, sgd

    data, model = dataset(20 * ranks.size), network()
    sampler = GraBSampler(data, 3)
    optimizer = GraBOptimizer(horovod(ranks, sgd(model.parameters()), model), sampler, model)
    ranks.optimizers.append(optimizer)
    return Job(ranks, data, model, sampler, torch.utils.data.DataLoader(data, batch_sampler=sampler), optimizer)


@check(0, 1, 2, 4)
def the_exact_bound(ranks: Ranks) -> None:
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks, config={"bound": "exact"})
    for _ in range(2):
        job.epoch()
    job.optimizer.close()
    for line in written(ranks):
        l2, linf = herding_bound(job.all_gradients(line["epoch"]), job.orders[line["epoch"]])
        assert np.isclose(line["herding_l2"], l2, rtol=1e-4)
        assert np.isclose(line["herding_linf"], linf, rtol=1e-4)


@check(0, 2)
def no_bound(ranks: Ranks) -> None:
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks, "rr", config={"bound": "off"})
    for _ in range(2):
        job.epoch()
    job.optimizer.close()
    assert [line["herding_l2"] for line in written(ranks)] == [None, None]
    assert all(unit.gradient is None for unit in job.units)  # nothing was even copied


@check(2, 4)
def logs_may_differ_between_ranks(ranks: Ranks) -> None:
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks)
    for features, classes in job.batches():
        job.train(features, classes)
        if ranks.rank == 1:
            job.optimizer.log(extra_loss=2.0)
    job.optimizer.close()
    assert written(ranks)[0]["extra_loss"] == 2.0


@check(0, 2)
def an_epoch_left_early_has_its_line(ranks: Ranks) -> None:
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks, examples=44, batch=2)
    for features, classes in job.batches():
        job.train(features, classes)
        if len(job.units) == 5:
            break
    job.optimizer.close()
    lines = written(ranks)
    assert [line["epoch"] for line in lines] == [0]
    assert lines[0]["pairs"] == 2 * ranks.size
    assert lines[0]["herding_l2"] is None
    assert lines[0]["train_loss"] > 0


@check(0, 2)
def no_line_without_a_unit(ranks: Ranks) -> None:
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks)
    next(iter(job.loader))
    job.optimizer.close()
    assert not list(ranks.directory.glob("metrics.jsonl"))

"""The orders of every epoch are those of the literal reference, run in one process on the gradients of all ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hvdgrab.balance import seeded_order
from hvdgrab.balance.reference import coordinated_signs, slot_order
from hvdgrab.report import metrics
from tests.training.jobs import CLASSES, FEATURES, Job, build, dataset
from tests.training.ranks import Ranks, check

Follow = Callable[[np.ndarray, np.ndarray], np.ndarray]


def coordinated(gradients: np.ndarray, orders: np.ndarray) -> np.ndarray:
    signs = coordinated_signs(gradients, orders).signs
    return np.array([slot_order(list(order), list(row)) for order, row in zip(orders, signs, strict=True)])


def alone(gradients: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """ID-GraB: every rank by itself."""
    return np.concatenate([coordinated(gradients[w : w + 1], orders[w : w + 1]) for w in range(len(orders))])


def check_orders(job: Job, epochs: int, follow: Follow) -> None:
    """Every epoch's orders follow from the recorded gradients and orders of the one before."""
    book, ranks = job.sampler.book, job.ranks
    expected = np.stack(
        [seeded_order("rr", n=book.n, epoch=0, seed=book.config.seed, rank=rank, size=book.size) for rank in range(book.size)]
    )
    for epoch in range(epochs):
        mine = [unit.unit for unit in job.units if unit.epoch == epoch]
        assert mine == expected[ranks.rank].tolist(), f"epoch {epoch}: {mine}, reference {expected[ranks.rank]}"
        assert np.array_equal(job.orders[epoch], expected), f"epoch {epoch}: {job.orders[epoch]}, reference {expected}"
        members = [job.sampler._units.members(ranks.rank, unit).tolist() for unit in mine]
        assert job.seen[epoch * book.n : (epoch + 1) * book.n] == members
        expected = follow(job.all_gradients(epoch), expected)


def run(ranks: Ranks, order: str, epochs: int, **options: Any) -> Job:
    job = build(ranks, order, **options)
    for _ in range(epochs):
        job.epoch()
    return job


@check(0, 1, 2, 3, 4, cases={f"n={n}": n for n in (1, 2, 3, 10, 11)})
def cd_grab(ranks: Ranks, n: int) -> None:
    job = run(ranks, "cd-grab", 4, data=dataset(2 * n * ranks.size), batch=2)
    assert job.sampler.units == n
    check_orders(job, 4, coordinated)


@check(0, 2, 4)
def id_grab(ranks: Ranks) -> None:
    check_orders(run(ranks, "id-grab", 4), 4, alone)


SETTINGS = {
    "three": {"pairs_per_message": 3},
    "more than there are": {"pairs_per_message": 50},
    "rank one": {"designated_rank": 1},
}


@check(2, 4, cases=SETTINGS)
def cd_grab_settings(ranks: Ranks, config: dict[str, Any]) -> None:
    check_orders(run(ranks, "cd-grab", 3, config=config, examples=44, batch=2), 3, coordinated)


@check(0, 1)
def one_rank_is_pair_balance(ranks: Ranks) -> None:
    """A single process that holds all gradients comes to the same orders: `hvdgrab.balance` by itself."""
    from hvdgrab.balance import next_order, pair_balance

    for order in ("cd-grab", "id-grab"):
        job = run(ranks, order, 3)
        for epoch in range(2):
            gradients, current = job.gradients(epoch), job.orders[epoch][0]
            pairs = current[: len(current) // 2 * 2].reshape(-1, 2)
            signs = pair_balance(gradients[pairs[:, 0]] - gradients[pairs[:, 1]], np.zeros(gradients.shape[1], dtype=np.float32))
            assert np.array_equal(next_order(current, signs), job.orders[epoch + 1][0])
        digest = job.sampler.state_dict()["orders"].tolist()
        shared = ranks.top.parent / f"one-rank-{order}.json"  # the worlds 0 and 1 lie side by side
        if shared.exists():
            assert json.loads(shared.read_text()) == digest, "with and without Horovod differ"
        shared.write_text(json.dumps(digest))


@check(0, 1)
def grab(ranks: Ranks) -> None:
    from hvdgrab.balance import MeanBalance

    job = run(ranks, "grab", 4)
    mean = MeanBalance(job.sampler.units, job.optimizer._table.dimension, job.orders[0][0])
    for epoch in range(3):
        for unit in (unit for unit in job.units if unit.epoch == epoch):
            mean.add(unit.gradient)
        assert np.array_equal(mean.next_order(), job.orders[epoch + 1][0])


@check(0, 2, 4)
def all_zero_gradients(ranks: Ranks) -> None:
    job = build(ranks, loss=lambda model, features, classes: 0.0 * model(features).sum())
    for _ in range(3):
        job.epoch()
    assert not job.all_gradients(1).any()
    check_orders(job, 3, coordinated)


@check(0, 2, 4)
def identical_examples(ranks: Ranks) -> None:
    count = 21 * ranks.size
    data = TensorDataset(torch.ones(count, FEATURES), torch.ones(count, dtype=torch.int64), torch.arange(count))
    check_orders(run(ranks, "cd-grab", 3, data=data, batch=2), 3, coordinated)


@check(0, 2, 4, cases={"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")})
def not_finite_on_one_rank(ranks: Ranks, value: float) -> None:
    """The pair is dropped and counted; the weights stay finite because the script clears such gradients, as AMP skips steps."""
    ranks.environment(HVDGRAB_JOB_DIR=str(ranks.directory))
    job = build(ranks, "cd-grab")
    for epoch in range(3):
        for number, (features, classes) in enumerate(job.batches()):
            job.optimizer.zero_grad()
            loss = job.loss(job.model, features, classes)
            sick = ranks.rank == ranks.size - 1 and epoch == 1 and number == 3
            (loss * value if sick else loss).backward()
            job.optimizer.synchronize()
            for parameter in job.model.parameters():
                parameter.grad.nan_to_num_(0.0, 0.0, 0.0)
            with job.optimizer.skip_synchronize():
                job.optimizer.step()
    check_orders(job, 3, coordinated)
    job.optimizer.close()
    if ranks.rank == 0:
        records = metrics.read(ranks.directory / "metrics.jsonl").records
        assert [record.pairs_dropped for record in records] == [0, 1, 0]
        pairs = ranks.size * (job.sampler.units // 2)
        assert [record.pairs for record in records] == [pairs] * 3


class Deep(nn.Module):
    """More coordinates than one sweep of the balance takes at once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 300), nn.ReLU(), nn.Linear(300, 30), nn.ReLU(), nn.Linear(30, CLASSES))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(features)
        return out


@check(2)
def a_larger_model(ranks: Ranks) -> None:
    """Ties within rounding aside, the bounds of reference and run agree: compared by bound, as signs may differ there."""
    from hvdgrab.balance.reference import prefix_bound

    job = run(ranks, "cd-grab", 2, model=Deep())
    gradients = job.all_gradients(0)
    mine, literal = job.orders[1], coordinated(gradients, job.orders[0])
    assert np.isclose(prefix_bound(gradients, mine)[0], prefix_bound(gradients, literal)[0], rtol=0.02)


@check(2)
def ranks_three_deep(ranks: Ranks) -> None:
    """Every rank can rebuild every order: all hold the same (W, n) and hash."""
    job = run(ranks, "cd-grab", 3)
    ranks.same({epoch: orders.tolist() for epoch, orders in job.orders.items()})

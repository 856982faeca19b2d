"""What is balanced is the compressed difference of what plain autograd gives; loss scales, layers and damaged messages."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import nn

from hvdgrab.balance import pair_balance
from hvdgrab.balance.reference import slot_order
from hvdgrab.errors import ConsistencyError, UsageError
from tests.training.checks_capture import Checkpointed, Odd, Tied
from tests.training.checks_orders import check_orders
from tests.training.checks_state import continuation_of
from tests.training.jobs import CLASSES, FEATURES, Job, build, cross_entropy, dataset, plain_gradient
from tests.training.ranks import Ranks, check

KINDS: dict[str, Any] = {
    "none": "none",
    "fp16": "fp16",
    "int8": {"kind": "int8", "block": 16},
    "topk": {"kind": "topk", "ratio": 0.2},
    "sketch": {"kind": "sketch", "width": 16},
    "sketch fp32": {"kind": "sketch", "width": 16, "dtype": "fp32"},
}


def balanced(job: Job) -> Any:
    """How the reference orders an epoch from the vectors that the ranks' sessions were given: differences, there and back."""
    compressor = job.optimizer._session.parts.coordinator._compressor

    def follow(vectors: np.ndarray, orders: np.ndarray) -> np.ndarray:
        pairs = orders.shape[1] // 2
        running_sum = np.zeros(vectors.shape[2], dtype=np.float32)
        signs = np.zeros((len(orders), pairs), dtype=np.int8)
        for k in range(pairs):
            for rank, order in enumerate(orders):
                difference = vectors[rank, order[2 * k]] - vectors[rank, order[2 * k + 1]]
                expanded = compressor.expand(compressor.encode(torch.from_numpy(difference))).numpy()
                signs[rank, k] = pair_balance(expanded[None], running_sum, backend="reference")[0]
        return np.array([slot_order(list(order), list(row)) for order, row in zip(orders, signs, strict=True)])

    return follow


@check(0, 2, cases=KINDS, soak=(4,))
def orders_follow_from_expanded_payloads(ranks: Ranks, compression: Any) -> None:
    job = build(ranks, examples=44, batch=2, config={"compression": compression})
    for _ in range(3):
        job.epoch(compare=True)
    job.check_captured()
    check_orders(job, 3, balanced(job))


MODELS = {"odd": lambda: Odd(branch=0), "tied": Tied, "checkpointed": lambda: Checkpointed(reentrant=False, around="012")}


@check(0, 2, cases=MODELS)
def streaming_sees_every_kind_of_model(ranks: Ranks, model: Any) -> None:
    job = build(ranks, model=model(), config={"compression": {"kind": "sketch", "width": 32}})
    job.epoch(compare=True)
    job.check_captured()
    ranks.same(job.weights())


@check(0, 1, 2, cases={"fp16": "fp16", "none": "none"})
def streaming_with_horovods_compression_and_several_passes(ranks: Ranks, kind: str) -> None:
    options = {"compression": getattr(ranks.hvd.Compression, kind), "backward_passes_per_step": 2} if ranks.hvd else {}
    job = build(ranks, options=options, batch=4, passes_per_unit=2, config={"compression": {"kind": "sketch", "width": 64}})
    for features, classes in job.batches():
        job.optimizer.zero_grad()
        for part in zip(features.tensor_split(2), classes.tensor_split(2), strict=True):
            job.refer(*part)
            job.loss(job.model, *part).backward()
        second = job.references.pop()
        job.references[-1] = job.references[-1] + second
        job.optimizer.step()
    captured = [unit.gradient for unit in job.units]
    projection = job.optimizer._session.parts.views.projection
    for mine, plain in zip(captured, job.references, strict=True):
        assert torch.allclose(mine, projection.fold(plain), atol=1e-5)
    ranks.same(job.weights())


@check(0, 2, cases={"dense": True, "sparse": False})
def streaming_of_sparse_gradients(ranks: Ranks, as_dense: bool) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.EmbeddingBag(7, 4, sparse=True, mode="sum"), nn.Linear(4, CLASSES))
    data = dataset(20 * ranks.size)
    words = torch.randint(7, (len(data), 3), generator=torch.Generator().manual_seed(5))
    data.tensors = (words, *data.tensors[1:])
    config = {"compression": {"kind": "sketch", "width": 64}}
    job = build(ranks, model=model, data=data, options={"sparse_as_dense": as_dense}, config=config)
    job.epoch(compare=True)
    projection = job.optimizer._session.parts.views.projection
    for unit, plain in zip(job.units, job.references, strict=True):
        assert unit.gradient is not None and torch.allclose(unit.gradient, projection.fold(plain), atol=1e-6)
    ranks.same(job.weights())


def scaled_step(ranks: Ranks, job: Job, scaler: Any, unscale: bool = False) -> None:
    """A step through the scaler, with Horovod as its documentation has it."""
    if ranks.hvd:
        job.optimizer.synchronize()
        if unscale:
            scaler.unscale_(job.optimizer)
        with job.optimizer.skip_synchronize():
            scaler.step(job.optimizer)
    else:
        scaler.step(job.optimizer)
    scaler.update()
    job.optimizer.zero_grad()


@check(0, 1, 2)
def a_changing_loss_scale_is_divided_out(ranks: Ranks) -> None:
    """The factor doubles between the two units of a pair; an overflow drops its pair and skips a step, and shifts nothing."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    job = build(ranks, grad_scaler=scaler, config={"compression": {"kind": "sketch", "width": 32, "dtype": "fp32"}})
    scales = []
    for number, (features, classes) in enumerate(job.batches()):
        job.refer(features, classes)
        loss = job.loss(job.model, features, classes) * (float("inf") if number == 4 else 1.0)
        scaler.scale(loss).backward()
        scales.append(scaler.get_scale())
        scaled_step(ranks, job, scaler, unscale=True)
    assert len(set(scales)) > 5, scales
    projection = job.optimizer._session.parts.views.projection
    for number, (unit, plain) in enumerate(zip(job.units, job.references, strict=True)):
        assert unit.gradient is not None
        if number == 4:
            assert not bool(torch.isfinite(unit.gradient).all())
        else:
            assert torch.allclose(unit.gradient, projection.fold(plain), rtol=1e-4, atol=1e-6), number
    ranks.same(job.weights())
    job.optimizer.close()
    if ranks.rank == 0:
        record = job.optimizer.last_epoch
        assert record is not None and record.pairs_dropped == ranks.size, record


@check(0, 2)
def a_loss_scale_that_nobody_named_is_reported(ranks: Ranks) -> None:
    scaler, job = torch.amp.GradScaler("cpu", init_scale=4.0), build(ranks)
    with ranks.heard() as said:
        for features, classes in job.batches():
            scaler.scale(job.loss(job.model, features, classes)).backward()
            scaled_step(ranks, job, scaler)
    assert sum("grad_scaler=scaler" in text for text in said) == 1, said
    with ranks.refused(UsageError, "must be a torch.amp.GradScaler, not a int"):
        build(ranks, grad_scaler=7)
    with ranks.refused(UsageError, "must be a torch.amp.GradScaler, not a type"):
        build(ranks, grad_scaler=torch.amp.GradScaler)


@check(0)
def a_loss_scale_that_is_off_or_vanishes(ranks: Ranks) -> None:
    """One that is off is not reported; one that float32 cannot divide by drops its pair."""
    scaler, job = torch.amp.GradScaler("cpu", enabled=False), build(ranks)
    with ranks.heard() as said:
        for features, classes in job.batches():
            scaler.scale(job.loss(job.model, features, classes)).backward()
            scaled_step(ranks, job, scaler)
    assert not [text for text in said if "GradScaler" in text], said
    tiny = build(ranks, grad_scaler=torch.amp.GradScaler("cpu", init_scale=1e-44), config={"compression": "sketch"})
    for features, classes in tiny.batches():
        tiny.loss(tiny.model, features, classes).backward()
    assert all(unit.gradient is not None and not bool(torch.isfinite(unit.gradient).all()) for unit in tiny.units)


@check(0, 2, cases={"none": "none", "sketch": {"kind": "sketch", "width": 32}})
def only_the_named_layers_take_part(ranks: Ranks, compression: Any) -> None:
    job = build(ranks, config={"layers": ("2.*",), "compression": compression})
    for features, classes in job.batches():
        whole = plain_gradient(job.model, cross_entropy, features, classes)
        job.references.append(whole[FEATURES * 6 + 6 :])
        job.train(features, classes)
    job.check_captured()
    ranks.same(job.weights())
    with ranks.refused(UsageError, "conv*"):
        build(ranks, config={"layers": ("conv*",)})


@check(0, 2)
def normalised_layers_count_alike(ranks: Ranks) -> None:
    job = build(ranks, config={"normalise_layers": True})
    job.epoch(compare=True)
    for unit, plain in zip(job.units, job.references, strict=True):
        for entry in job.optimizer._table.entries:
            mine, theirs = (vector[entry.start : entry.start + entry.length] for vector in (unit.gradient, plain))
            assert torch.allclose(mine, theirs / theirs.norm(), atol=1e-6)


@check(0)
def normalised_sparse_gradients_have_norm_one(ranks: Ranks) -> None:
    """Also where a word occurs twice: its two rows are one of the gradient."""
    model = nn.Sequential(nn.EmbeddingBag(7, 4, sparse=True, mode="sum"), nn.Linear(4, CLASSES))
    data = dataset(20)
    data.tensors = (torch.ones(20, 3, dtype=torch.int64), *data.tensors[1:])
    job = build(ranks, model=model, data=data, config={"normalise_layers": True})
    job.epoch()
    entry = job.optimizer._table.entries[0]
    for unit in job.units:
        assert unit.gradient is not None
        assert abs(float(unit.gradient[entry.start : entry.start + entry.length].norm()) - 1) < 1e-5


@check(2, soak=(4,))
def only_the_rank_that_balances_loads_numba(ranks: Ranks) -> None:
    job = build(ranks, config={"balance": {"backend": "numba"}})
    for _ in range(2):
        job.epoch()
    job.optimizer.close()
    loaded = ranks.everyone("numba" in sys.modules)
    assert loaded == [True] + [False] * (ranks.size - 1), loaded


@check(2, cases={"sketch": "sketch", "topk": {"kind": "topk", "k": 5}})
def continuing_is_bit_for_bit(ranks: Ranks, compression: Any) -> None:
    continuation_of(ranks, "cd-grab", {"compression": compression, "pairs_per_message": 2}, ((0, 11), (1, 4), (1, 5)))


@check(2)
def settings_that_differ_between_ranks_are_named(ranks: Ranks) -> None:
    kind = "sketch" if ranks.rank == 0 else "topk"
    job = build(ranks, config={"compression": kind})
    features, classes = next(job.batches())
    with ranks.refused(ConsistencyError, "settings:", "on rank 1"):
        job.loss(job.model, features, classes).backward()
    if ranks.hvd:
        job.optimizer.synchronize()

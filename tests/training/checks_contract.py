"""GraBOptimizer is an optimizer: what scripts, schedulers, scalers and Horovod's own helpers do with one works."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import torch

from hvdgrab import GraBOptimizer, GraBSampler
from hvdgrab.errors import UsageError, WorldError
from tests.training.checks_weights import BASES
from tests.training.jobs import Job, build, dataset, flat, network, sgd
from tests.training.ranks import Ranks, check


@check(0, 1, 2)
def is_an_optimizer(ranks: Ranks) -> None:
    job = build(ranks)
    optimizer = job.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    inner = optimizer._inner.optimizer
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults == inner.defaults
    assert "cd-grab" in repr(optimizer)


@check(0, 1, 2)
def schedulers(ranks: Ranks) -> None:
    job = build(ranks, base=BASES["momentum"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step = torch.optim.lr_scheduler.StepLR(job.optimizer, 1, gamma=0.5)
        for _ in range(2):
            job.epoch()
            step.step()
        assert step.get_last_lr() == [0.0125]
        assert job.optimizer._inner.optimizer.param_groups[0]["lr"] == 0.0125
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(job.optimizer, factor=0.1, patience=0)
        for loss in (1.0, 2.0):
            plateau.step(loss)
        assert abs(job.optimizer.param_groups[0]["lr"] - 0.00125) < 1e-12
        cycle = torch.optim.lr_scheduler.OneCycleLR(job.optimizer, 0.2, total_steps=2 * job.sampler.units)
        for features, classes in job.batches():
            job.train(features, classes)
            cycle.step()
        assert job.optimizer._inner.optimizer.param_groups[0]["momentum"] != 0.9
        assert cycle.state_dict()["last_epoch"] == job.sampler.units
    ranks.same(job.weights())


@check(0, 1, 2)
def step_hooks(ranks: Ranks) -> None:
    job = build(ranks)
    calls: list[str] = []
    job.optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: calls.append("pre"))
    job.optimizer.register_step_post_hook(lambda optimizer, args, kwargs: calls.append("post"))
    features, classes = next(job.batches())
    job.train(features, classes)
    assert calls == ["pre", "post"]


@check(0, 1, 2)
def closures(ranks: Ranks) -> None:
    job = build(ranks)
    calls = 0
    for features, classes in job.batches():

        def closure(features: torch.Tensor = features, classes: torch.Tensor = classes) -> torch.Tensor:
            nonlocal calls
            calls += 1
            job.optimizer.zero_grad()
            job.refer(features, classes)
            loss = job.loss(job.model, features, classes)
            loss.backward()
            return loss

        loss = job.optimizer.step(closure)
        assert isinstance(loss, torch.Tensor)
        assert loss.item() > 0
    assert calls == job.sampler.units
    job.check_captured()
    assert job.weights() != flat(network())
    ranks.same(job.weights())


@check(0, 1, 2)
def closure_gives_the_weights_of_plain_steps(ranks: Ranks) -> None:
    jobs = []
    for number in range(2):
        ranks.prefix += "+"
        job = build(ranks, "rr", base=BASES["adam"])
        for features, classes in job.batches():
            if number:
                job.optimizer.zero_grad()

                def closure(job: Job = job, features: torch.Tensor = features, classes: torch.Tensor = classes) -> torch.Tensor:
                    loss = job.loss(job.model, features, classes)
                    loss.backward()
                    return loss

                job.optimizer.step(closure)
            else:
                job.train(features, classes)
        jobs.append(job)
    assert jobs[0].weights() == jobs[1].weights()


@check(0, 1, 2)
def zero_grad(ranks: Ranks) -> None:
    job = build(ranks)
    features, classes = next(job.batches())
    job.train(features, classes)
    for given, empty in (({"set_to_none": False}, False), ({"set_to_none": True}, True)):
        for parameter in job.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        job.optimizer.zero_grad(**given)
        grads = [parameter.grad for parameter in job.model.parameters()]
        assert all((grad is None) if empty else (grad is not None and not grad.any()) for grad in grads)
    job.optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in job.model.parameters())


@check(2)
def zero_grad_keeps_the_race_check(ranks: Ranks) -> None:
    job = build(ranks)
    features, classes = next(job.batches())
    job.loss(job.model, features, classes).backward()
    with ranks.refused(AssertionError, "race condition"):
        job.optimizer.zero_grad()
    with ranks.refused(AssertionError, "race condition"):
        job.optimizer.zero_grad(set_to_none=False)
    job.optimizer.synchronize()
    job.optimizer.zero_grad()
    ranks.same(job.weights())


@check(0, 1, 2, cases={name: name for name in BASES})
def state_dict_round_trip(ranks: Ranks, name: str) -> None:
    job = build(ranks, base=BASES[name])
    job.epoch()
    state = job.optimizer.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read = torch.load(file, weights_only=True)
    assert set(read) == {"state", "param_groups", "hvdgrab"}
    plain = job.optimizer._inner.optimizer.state_dict()
    assert read["param_groups"] == plain["param_groups"]
    assert str(read["state"]) == str(plain["state"])
    job.optimizer.load_state_dict(read)
    after = job.optimizer.state_dict()
    assert str(after["state"]) == str(state["state"])
    for name in ("epoch", "position", "orders", "signs", "n", "size", "order", "seed", "facts"):
        assert str(after["hvdgrab"][name]) == str(state["hvdgrab"][name]), name
    assert job.optimizer.state is job.optimizer._inner.optimizer.state
    job.epoch()
    ranks.same(job.weights())


@check(0, 2)
def a_plain_state_leaves_the_order(ranks: Ranks) -> None:
    job = build(ranks, base=BASES["momentum"])
    job.epoch()
    plain = job.optimizer._inner.optimizer.state_dict()
    job.optimizer.load_state_dict(plain)
    job.epoch()
    assert [unit.epoch for unit in job.units] == [0] * job.sampler.units + [1] * job.sampler.units


@check(0, 2)
def pickling_is_refused(ranks: Ranks) -> None:
    job = build(ranks)
    for attempt in (pickle.dumps, copy.deepcopy, copy.copy, lambda thing: torch.save(thing, io.BytesIO())):
        with ranks.refused(TypeError, "state_dict()"):
            attempt(job.optimizer)


@check(0, 2)
def add_param_group_is_refused(ranks: Ranks) -> None:
    job = build(ranks)
    with ranks.refused(UsageError, "add_param_group", "hvd.DistributedOptimizer"):
        job.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    job.epoch()


@check(0, 2)
def gradient_scaler(ranks: Ranks) -> None:
    """The calls of an AMP script; the captured vectors are those of the scaled loss."""
    job = build(ranks)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for features, classes in job.batches():
        job.optimizer.zero_grad()
        scaler.scale(job.loss(job.model, features, classes)).backward()
        job.optimizer.synchronize()
        scaler.unscale_(job.optimizer)
        torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1.0)
        with job.optimizer.skip_synchronize():
            scaler.step(job.optimizer)
        scaler.update()
    assert job.weights() != flat(network())
    ranks.same(job.weights())


@check(1, 2, 4, cases={name: name for name in BASES})
def broadcast_before_training(ranks: Ranks, name: str) -> None:
    torch.manual_seed(100 + ranks.rank)
    model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    job = build(ranks, model=model, base=BASES[name])
    first = ranks.everyone(flat(model))[0]
    ranks.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert flat(model) == first
    ranks.hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    assert flat(model) == first, "broadcasting the optimizer's state moved the weights"
    assert not job.units
    assert job.sampler.book.position == 0
    job.epoch()
    assert len(job.units) == job.sampler.units
    ranks.same(job.weights())
    ranks.same(str(job.optimizer._inner.optimizer.state_dict()["state"]))


@check(2, 4, cases={name: name for name in BASES})
def broadcast_with_state_on_rank_0_only(ranks: Ranks, name: str) -> None:
    """A checkpoint that rank 0 alone has read: the other ranks have no state, and create it without Horovod."""
    earlier = build(ranks, base=BASES[name])
    earlier.epoch()
    state = earlier.optimizer.state_dict()
    ranks.prefix += "+"
    job = build(ranks, base=BASES[name])
    if ranks.rank == 0:
        job.model.load_state_dict(earlier.model.state_dict())
        job.optimizer.load_state_dict(state)
    ranks.hvd.broadcast_parameters(job.model.state_dict(), root_rank=0)
    ranks.hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    assert job.weights() == earlier.weights()
    assert not job.units
    states = str(job.optimizer._inner.optimizer.state_dict()["state"])
    if name != "sgd":
        assert states == str(state["state"])
    ranks.same(states)
    job.epoch()
    assert {unit.epoch for unit in job.units} == {1}
    ranks.same(job.weights())


@check(0, 1, 2)
def lbfgs_is_refused(ranks: Ranks) -> None:
    with ranks.refused(UsageError, "LBFGS"):
        build(ranks, base=lambda parameters: torch.optim.LBFGS(parameters))


@check(1, 2)
def adasum_is_refused(ranks: Ranks) -> None:
    with ranks.refused(UsageError, "Adasum", "hvd.Average"):
        build(ranks, options={"op": ranks.hvd.Adasum})


@check(1, 2)
def elastic_is_refused(ranks: Ranks) -> None:
    ranks.environment(HOROVOD_ELASTIC="1")
    with ranks.refused(WorldError, "elastic", "fixed world"):
        build(ranks)


@check(2, 4)
def a_process_set_is_refused(ranks: Ranks) -> None:
    with ranks.refused(WorldError, "process set", "global"):
        build(ranks, options={"process_set": ranks.part})


@check(2, 4)
def a_plain_optimizer_is_refused(ranks: Ranks) -> None:
    model = network()
    with ranks.refused(WorldError, "hvd.DistributedOptimizer(optimizer, model.named_parameters())"):
        GraBOptimizer(sgd(model.parameters()), GraBSampler(dataset(20), 2), model)


@check(2)
def grab_on_several_ranks_is_refused(ranks: Ranks) -> None:
    with ranks.refused(UsageError, "'grab'", "cd-grab"):
        build(ranks, "grab")


@check(0, 2)
def wrong_arguments_are_refused(ranks: Ranks) -> None:
    job = build(ranks)
    sampler, model, inner = job.sampler, job.model, job.optimizer._inner.optimizer
    wrong: list[tuple[Any, Any, Any, str]] = [
        (model, sampler, inner, "optimizer is a Sequential"),
        (inner, model, sampler, "sampler is a Sequential"),
        (inner, sampler, sampler, "model is a GraBSampler"),
        (job.optimizer, sampler, model, "GraBOptimizer already"),
        (inner, GraBSampler(job.data, 3), network(), "not the model's"),
        (inner, sampler, model, "already belongs to another GraBOptimizer"),
    ]
    for optimizer, data_sampler, net, words in wrong:
        with ranks.refused(UsageError, words):
            GraBOptimizer(optimizer, data_sampler, net)
    job.epoch(compare=True)
    job.check_captured()

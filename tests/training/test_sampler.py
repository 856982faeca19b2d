from __future__ import annotations

import multiprocessing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from hvdgrab import GraBConfig, GraBOptimizer, GraBSampler
from hvdgrab.config import ORDERS
from hvdgrab.errors import ConfigError, StateError, UsageError, WorldError

EXAMPLES = 23
LOADERS = {
    "workers 0": {"num_workers": 0},
    "workers 2": {"num_workers": 2},
    "workers 2, persistent": {"num_workers": 2, "persistent_workers": True},
}
FORKSERVER = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": multiprocessing.get_context("forkserver")}


def numbers(examples: int = EXAMPLES) -> TensorDataset:
    return TensorDataset(torch.arange(examples, dtype=torch.float32).reshape(-1, 1))


class Training:
    """A script in a single process."""

    def __init__(self, order: str = "cd-grab", examples: int = EXAMPLES, batch_size: int = 4, **loader) -> None:
        torch.manual_seed(0)
        self.data = numbers(examples)
        self.model = nn.Linear(1, 3)
        self.sampler = GraBSampler(self.data, batch_size, order=order)
        self.loader = DataLoader(self.data, batch_sampler=self.sampler, **loader)
        self.optimizer = GraBOptimizer(torch.optim.SGD(self.model.parameters(), lr=1e-3), self.sampler, self.model)

    def step(self, batch) -> list[int]:
        self.optimizer.zero_grad()
        self.model(batch[0] / EXAMPLES).square().mean().backward()
        self.optimizer.step()
        return [int(value) for value in batch[0].ravel()]

    def epoch(self) -> list[list[int]]:
        return [self.step(batch) for batch in self.loader]


@pytest.fixture
def training():
    made = []

    def make(**settings) -> Training:
        made.append(Training(**settings))
        return made[-1]

    yield make
    for one in made:
        one.optimizer.close()


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("order", ["cd-grab", "reshuffle"])
def test_every_example_once_an_epoch_whatever_the_loader(training, loader, order):
    run = training(order=order, **loader)
    epochs = [run.epoch() for _ in range(3)]
    for epoch in epochs:
        assert sorted(sum(epoch, [])) == list(range(EXAMPLES))
        assert len(epoch) == len(run.sampler) == len(run.loader) == 6
    assert epochs[0] != epochs[1] != epochs[2]
    plain = training(order=order)
    assert epochs == [plain.epoch() for _ in range(3)], "the loader's workers change nothing"


def test_workers_of_a_forkserver_change_nothing_either(training):
    run, plain = training(**FORKSERVER), training()
    assert [run.epoch() for _ in range(2)] == [plain.epoch() for _ in range(2)]


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_gives_permutations_of_its_units(training, order):
    run = training(order=order)
    for _ in range(4):
        assert sorted(sum(run.epoch(), [])) == list(range(EXAMPLES))


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 9), st.sampled_from(ORDERS))
@settings(deadline=None, max_examples=60)
def test_all_ranks_together_see_each_example_once(examples, size, batch_size, order):
    if examples < size:
        with pytest.raises(UsageError, match=f"{examples} examples for {size} ranks"):
            GraBSampler(numbers(examples), batch_size, order=order, rank=0, size=size)
        return
    samplers = [GraBSampler(numbers(examples), batch_size, order=order, rank=rank, size=size) for rank in range(size)]
    seen = [list(sampler) for sampler in samplers]
    assert len({len(units) for units in seen}) == 1
    assert sorted(index for units in seen for unit in units for index in unit) == list(range(examples))


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_looking_at_a_batch_before_and_between_epochs_leaves_no_trace(training, loader):
    plain, peeking = training(), training(**loader)
    for _ in range(3):
        first = next(iter(peeking.loader))[0].ravel().tolist()
        next(iter(peeking.loader))
        epoch = peeking.epoch()
        assert epoch[0] == first, "the peek saw the batch that came"
        assert epoch == plain.epoch()


def test_iterating_without_training_leaves_no_trace(training):
    run = training()
    first = [batch[0].ravel().tolist() for batch in run.loader]
    assert [batch[0].ravel().tolist() for batch in run.loader] == first
    assert run.epoch() == first
    assert run.sampler.epoch == 0


def test_an_iterator_made_before_another_one_goes_on(training):
    run = training()
    early = iter(run.loader)
    next(iter(run.loader))
    assert len([run.step(batch) for batch in early]) == 6


@pytest.mark.parametrize("loader", [LOADERS["workers 0"], LOADERS["workers 2"]], ids=["workers 0", "workers 2"])
def test_an_epoch_left_early_is_followed_by_a_whole_one(training, loader):
    run = training(**loader)
    for number, batch in enumerate(run.loader):
        run.step(batch)
        if number == 2:
            break
    assert sorted(sum(run.epoch(), [])) == list(range(EXAMPLES))
    assert run.sampler.epoch == 1


def test_a_second_iterator_in_the_middle_of_an_epoch_is_an_error_of_the_first(training):
    run = training()
    iterator = iter(run.loader)
    run.step(next(iterator))
    next(iter(run.loader))
    with pytest.raises(UsageError, match="a second iterator ends the epoch of the first"):
        next(iterator)


def test_set_epoch_is_accepted_and_checked(training):
    run = training()
    for epoch in range(3):
        run.sampler.set_epoch(epoch)
        run.epoch()
    with pytest.raises(UsageError, match=r"set_epoch\(5\), but the next iteration is epoch 3"):
        run.sampler.set_epoch(5)
    with pytest.raises(UsageError, match="next iteration is epoch 3"):
        run.sampler.set_epoch(0)


def test_another_sampler_is_noticed_at_the_first_unit(training):
    run = training()
    run.loader = DataLoader(run.data, batch_size=4)
    with pytest.raises(UsageError, match="no batch was drawn from GraBSampler: build the DataLoader with batch_sampler=sampler"):
        run.epoch()


def test_more_passes_than_units_are_noticed(training):
    run = training()
    with pytest.raises(UsageError, match=r"more backward passes than units.*optimizer.paused.*passes_per_unit=k"):
        for batch in run.loader:
            run.step(batch)
            run.step(batch)


def test_seeded_orders_work_without_an_optimizer_and_gradient_orders_say_what_is_missing():
    sampler = GraBSampler(numbers(), 4, order="rr")
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(map(tuple, first)) == sorted(map(tuple, second))
    sampler = GraBSampler(numbers(), 4)
    list(sampler)
    with pytest.raises(UsageError, match="no GraBOptimizer was made over this sampler"):
        list(sampler)


def test_seeds_and_orders_of_one_seed_share_their_units_and_first_epoch():
    alike = ("rr", "cd-grab", "id-grab", "shuffle-once", "reshuffle")
    epochs = {order: list(GraBSampler(numbers(), 4, order=order)) for order in alike}
    assert all(epoch == epochs["rr"] for epoch in epochs.values())
    assert list(GraBSampler(numbers(), 4, order="rr", seed=1)) != epochs["rr"]
    in_order = list(GraBSampler(numbers(), 4, order="fixed"))
    assert sum(in_order, []) == list(range(EXAMPLES))


def test_bad_arguments_are_refused_with_the_reason(monkeypatch):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(UsageError, match="Stream .* has none"):
        GraBSampler(Stream(), 4)
    with pytest.raises(UsageError, match="batch size must be at least 1"):
        GraBSampler(numbers(), 0)
    for batch_size in (2.5, "8", None, True):
        with pytest.raises(UsageError, match="batch_size must be a whole number"):
            GraBSampler(numbers(), batch_size)
    with pytest.raises(UsageError, match="0 examples"):
        GraBSampler([], 4)
    with pytest.raises(UsageError, match="rank and size go together"):
        GraBSampler(numbers(), 4, rank=1)
    with pytest.raises(UsageError, match="rank 3 is not one of 2 ranks"):
        GraBSampler(numbers(), 4, rank=3, size=2)
    with pytest.raises(ConfigError, match="order: Input should be 'reshuffle'"):
        GraBSampler(numbers(), 4, order="random")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(WorldError, match="started 2 processes, but Horovod is not initialised"):
        GraBSampler(numbers(), 4)


def test_complex_parameters_are_refused_by_name():
    model = nn.ParameterDict({"phase": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
    with pytest.raises(UsageError, match="parameter 'phase' is complex"):
        GraBOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), GraBSampler(numbers(), 4), model)


def test_arguments_that_contradict_the_yaml_are_an_error(monkeypatch):
    monkeypatch.setenv("HVDGRAB_GRAB", '{"order": "rr", "seed": 3}')
    sampler = GraBSampler(numbers(), 4)
    assert (sampler.config.order, sampler.config.seed) == ("rr", 3)
    assert GraBSampler(numbers(), 4, seed=3, order="rr").config.seed == 3
    with pytest.raises(ConfigError, match="'seed' is 3 in the job's YAML .* but 0 in the script's argument"):
        GraBSampler(numbers(), 4, seed=0)
    with pytest.raises(ConfigError, match="'order' is 'rr' in the job's YAML .* but 'cd-grab' in the GraBConfig"):
        GraBSampler(numbers(), 4, config=GraBConfig(order="cd-grab"))
    monkeypatch.setenv("HVDGRAB_GRAB", '{"ordre": "rr"}')
    with pytest.raises(ConfigError, match="HVDGRAB_GRAB does not hold valid settings: ordre"):
        GraBSampler(numbers(), 4)


RESUMED = [(order, after, "workers 0") for order in ORDERS for after in (0, 1, 2, 5, 6)]
RESUMED += [("cd-grab", 2, "workers 2"), ("grab", 5, "workers 2"), ("reshuffle", 6, "workers 2, persistent")]


@pytest.mark.parametrize(("order", "after", "loader"), RESUMED)
def test_a_resumed_run_is_bit_exact(training, order, after, loader, tmp_path):
    loader = LOADERS[loader]
    whole = training(order=order)
    epochs = [whole.epoch() for _ in range(4)]
    broken = training(order=order, **loader)
    seen = [broken.epoch()]
    part = []
    for batch in broken.loader if after else []:
        part.append(broken.step(batch))
        if len(part) == after:
            break
    torch.save({"optimizer": broken.optimizer.state_dict(), "model": broken.model.state_dict()}, tmp_path / "checkpoint.pt")
    resumed = training(order=order, **loader)
    checkpoint = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.optimizer.load_state_dict(checkpoint["optimizer"])
    resumed.model.load_state_dict(checkpoint["model"])
    assert resumed.sampler.next_epoch == (1 if after < 6 else 2)
    if part:
        seen.append(part + (resumed.epoch() if after < 6 else []))
    seen += [resumed.epoch() for _ in range(4 - len(seen))]
    assert seen == epochs
    assert torch.equal(resumed.model.weight, whole.model.weight)


def test_a_state_can_be_loaded_before_the_optimizer_exists(training):
    run = training()
    run.epoch()
    state = run.sampler.state_dict()
    expected = run.epoch()
    sampler = GraBSampler(run.data, 4)
    sampler.load_state_dict(state)
    other = Training()
    other.optimizer.close()
    other.sampler = sampler
    other.loader = DataLoader(run.data, batch_sampler=sampler)
    other.optimizer = GraBOptimizer(torch.optim.SGD(other.model.parameters(), lr=1e-3), sampler, other.model)
    assert other.epoch() == expected
    other.optimizer.close()


def test_states_of_other_data_and_garbage_are_refused(training):
    state = training().sampler.state_dict()
    with pytest.raises(StateError, match="units per rank is 6, here it is 12"):
        GraBSampler(numbers(), 2).load_state_dict(state)
    with pytest.raises(StateError, match="number of examples is 23, here it is 24"):
        GraBSampler(numbers(24), 4).load_state_dict(state)
    with pytest.raises(StateError, match="it has no version"):
        GraBSampler(numbers(), 4).load_state_dict({"epoch": 3})
    with pytest.raises(StateError, match="version 99, this release reads version 2"):
        GraBSampler(numbers(), 4).load_state_dict({**state, "version": 99})
    with pytest.raises(StateError, match="incomplete: orders missing"):
        GraBSampler(numbers(), 4).load_state_dict({name: value for name, value in state.items() if name != "orders"})

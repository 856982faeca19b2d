"""The views of a unit's gradient that the two collectors give, parameter by parameter, are those of the whole gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from hvdgrab.compression.fold import FoldSketch
from hvdgrab.compression.rows import POOL
from hvdgrab.coordinator.gradient import UnitGradient, Views
from hvdgrab.errors import UsageError
from hvdgrab.training.collect import DenseCollector, NoCollector, StreamCollector, build_collector
from hvdgrab.training.parameters import ParameterTable

WIDTH = 5
SIGNED = 3
"""A seed with which the sign of block 0 is +1: the rows then hold a small gradient itself, which is easy to compare."""
PERIOD = POOL * WIDTH
MEASURING = FoldSketch(8, 2**63)


def views(projection: FoldSketch | None = FoldSketch(WIDTH, SIGNED), balanced: bool = True, **more) -> Views:  # noqa: B008 - never changed
    return Views(**{"balanced": balanced, "projection": projection, "measuring": MEASURING, "exact": False, **more})


def table(*shapes: tuple[int, ...], layers: list[str] | None = None) -> ParameterTable:
    model = nn.ParameterDict({f"p{number:02}": nn.Parameter(torch.zeros(shape)) for number, shape in enumerate(shapes)})
    return ParameterTable(torch.optim.SGD(model.parameters(), lr=0.1), model, layers)


def integers(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Whole numbers, whose sums are exact in any order."""
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).float()


def dense_views(wanted: Views, gradients: list[torch.Tensor]) -> UnitGradient:
    return wanted.of(torch.cat([gradient.reshape(-1) for gradient in gradients]))


def equal(mine: UnitGradient | None, theirs: UnitGradient) -> bool:
    """The sketch that measures may have the opposite sign, as long as it always has: a bound is a norm."""
    assert mine is not None
    if mine.measured is not None and theirs.measured is not None and torch.equal(mine.measured, -theirs.measured):
        mine = mine._replace(measured=theirs.measured)
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(mine, theirs, strict=True)
    )


SHAPES = [(3, 5), (), (PERIOD + 7,), (0,), (40, 20), (1, 1, 2), (2 * PERIOD,)]


@pytest.mark.parametrize("kind", [DenseCollector, StreamCollector])
def test_each_collector_gives_the_views_of_the_whole(kind):
    wanted, parameters = views(), table(*SHAPES)
    collector = kind(parameters, wanted, torch.device("cpu"))
    for unit in range(3):
        gradients = [integers(shape, 10 * unit + number) for number, shape in enumerate(SHAPES)]
        for number in reversed(range(len(SHAPES))):  # as backward passes reach them
            collector.take(number, gradients[number], 1.0)
        vector = wanted.of(torch.cat([gradient.reshape(-1) for gradient in gradients])).vector
        found = collector.finish()
        assert found is not None and found.vector is not None and found.measured is not None
        assert torch.equal(found.vector, vector)
        assert found.measured.shape == (8,)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 3 * PERIOD), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from([torch.float32, torch.float16, torch.float64]),
)
def test_streaming_is_folding_whatever_the_order_of_the_hooks(lengths, random, dtype):
    assume(sum(lengths))
    shapes = [(length,) for length in lengths]
    wanted, parameters = views(), table(*shapes)
    collector = StreamCollector(parameters, wanted, torch.device("cpu"))
    gradients = [integers(shape, number) for number, shape in enumerate(shapes)]
    order = list(range(len(shapes))) * 2  # two backward passes
    random.shuffle(order)
    for number in order:
        collector.take(number, gradients[number].to(dtype), 0.5)
    found = collector.finish()
    expected = dense_views(wanted, gradients).vector
    assert found is not None and found.vector is not None and expected is not None
    assert torch.equal(found.vector, expected)


def test_the_measuring_sketch_is_that_of_the_rows():
    """Below one block nothing has collided, so it is the sketch of the gradient itself (here the sign of block 0 is +1)."""
    wanted, parameters = views(), table((10, 20))
    collector = StreamCollector(parameters, wanted, torch.device("cpu"))
    gradient = integers((10, 20), 1)
    collector.take(0, gradient, 1.0)
    assert equal(collector.finish(), dense_views(wanted, [gradient]))


def test_squared_norms_of_the_measuring_sketch_are_unbiased_beyond_a_block():
    gradient = torch.randn(5 * PERIOD, generator=torch.Generator().manual_seed(0))
    squares = []
    for seed in range(300):
        wanted = views(FoldSketch(WIDTH, seed), measuring=FoldSketch(16, seed ^ 2**63))
        collector = StreamCollector(table((5 * PERIOD,)), wanted, torch.device("cpu"))
        collector.take(0, gradient, 1.0)
        squares.append(float(collector.finish().measured.square().sum()))  # type: ignore[union-attr]
    assert np.mean(squares) == pytest.approx(float(gradient.square().sum()), rel=0.08)


@pytest.mark.parametrize("kind", [DenseCollector, StreamCollector])
def test_a_parameter_without_a_gradient_is_zero_and_nothing_stays_from_the_unit_before(kind):
    wanted, parameters = views(FoldSketch(WIDTH, SIGNED)), table((3,), (4,))
    collector = kind(parameters, wanted, torch.device("cpu"))
    collector.take(0, integers((3,), 1), 1.0)
    collector.take(1, integers((4,), 2), 1.0)
    collector.finish()
    collector.take(1, integers((4,), 3), 1.0)
    assert equal(collector.finish(), dense_views(wanted, [torch.zeros(3), integers((4,), 3)]))
    assert equal(collector.finish(), dense_views(wanted, [torch.zeros(3), torch.zeros(4)]))
    collector.take(0, integers((3,), 4), 1.0)
    collector.forget()
    collector.take(1, integers((4,), 5), 1.0)
    assert equal(collector.finish(), dense_views(wanted, [torch.zeros(3), integers((4,), 5)]))


@pytest.mark.parametrize("kind", [DenseCollector, StreamCollector])
def test_non_finite_gradients_show_and_do_not_outlive_their_unit(kind):
    collector = kind(table((200,)), views(), torch.device("cpu"))
    for bad in (float("nan"), float("inf")):
        gradient = integers((200,), 1)
        gradient[7] = bad
        collector.take(0, gradient, 1.0)
        found = collector.finish()
        assert found is not None and found.vector is not None and not bool(torch.isfinite(found.vector).all())
        collector.take(0, integers((200,), 1), 1.0)
        assert equal(collector.finish(), dense_views(views(), [integers((200,), 1)]))


@pytest.mark.parametrize("rows", [1, 5, 400])
@pytest.mark.parametrize("kind", [DenseCollector, StreamCollector])
def test_sparse_gradients_are_folded_from_their_rows(kind, rows):
    wanted, parameters = views(), table((9,), (200, 7), (3,))
    indices = torch.randint(200, (1, rows), generator=torch.Generator().manual_seed(rows))  # repeated ones among them
    sparse = torch.sparse_coo_tensor(indices, integers((rows, 7), 5), (200, 7), check_invariants=True)
    collector = kind(parameters, wanted, torch.device("cpu"))
    collector.take(1, sparse, 2.0)
    found, expected = collector.finish(), dense_views(wanted, [torch.zeros(9), 2 * sparse.to_dense(), torch.zeros(3)])
    assert found is not None and found.vector is not None and expected.vector is not None
    assert torch.equal(found.vector, expected.vector)


@pytest.mark.parametrize("shape", [(30, 40), (2, 3, 4), (600, 700)])
def test_gradients_in_another_memory_layout_are_folded_in_their_logical_order(shape):
    wanted, parameters = views(FoldSketch(512, 1)), table((5,), shape)
    gradient = integers(shape[::-1], 1).permute(*reversed(range(len(shape))))
    assert not gradient.is_contiguous()
    collector = StreamCollector(parameters, wanted, torch.device("cpu"))
    collector.take(1, gradient, 1.0)
    found, expected = collector.finish(), dense_views(wanted, [torch.zeros(5), gradient.contiguous()])
    assert found is not None and found.vector is not None and expected.vector is not None
    assert torch.equal(found.vector, expected.vector)


def test_layers_that_take_no_part_have_no_coordinates():
    parameters = table((3,), (4,), (5,), layers=["p00", "*2"])
    assert [entry.length for entry in parameters.entries] == [3, 0, 5]
    assert parameters.dimension == 8


def test_a_layer_that_takes_no_part_may_be_larger_than_all_that_does():
    parameters = table((3,), (100, 100), (2 * PERIOD,), (5,), layers=["p00", "p03"])
    wanted = views()
    collector = StreamCollector(parameters, wanted, torch.device("cpu"))
    collector.take(3, integers((5,), 1), 1.0)
    assert equal(collector.finish(), dense_views(wanted, [torch.zeros(3), integers((5,), 1)]))
    with pytest.raises(UsageError, match="no values at all"):
        table((3,), (0,), layers=["p01"])


def test_a_sparse_gradient_without_rows_adds_nothing():
    wanted, parameters = views(), table((200, 7))
    collector = StreamCollector(parameters, wanted, torch.device("cpu"))
    nothing = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 7), (200, 7), check_invariants=True)
    collector.take(0, nothing, 1.0)
    found = collector.finish()
    assert found is not None and found.vector is not None and not found.vector.any()


def test_names_of_a_compiled_module_are_those_of_the_module():
    model = nn.Linear(3, 2)
    compiled = torch.compile(model, backend="eager")
    tables = [ParameterTable(torch.optim.SGD(model.parameters(), lr=0.1), one, ["wei*"]) for one in (model, compiled)]
    assert [entry.length for entry in tables[1].entries] == [0, 6]
    assert tables[0].digest() == tables[1].digest()


def test_the_collector_with_the_least_memory_is_chosen():
    parameters = table((3,))
    cases = [
        (views(), StreamCollector),
        (views(projection=None), DenseCollector),
        (views(exact=True), DenseCollector),
        (views(balanced=False), StreamCollector),
        (views(balanced=False, measuring=None), NoCollector),
    ]
    for wanted, kind in cases:
        assert type(build_collector(parameters, wanted)) is kind


def test_the_memory_of_streaming_does_not_grow_with_the_model():
    rows = [StreamCollector(table((size,)), views(), torch.device("cpu"))._rows.rows for size in (10 * PERIOD, 1000 * PERIOD)]
    assert rows[0].numel() == rows[1].numel() == PERIOD

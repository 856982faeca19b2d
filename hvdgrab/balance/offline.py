"""Orders for stored gradients: for a matrix of gradients, embeddings or features in a file or in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, check_kind, like, to_numpy
from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.balance.base import Rule, derived_seed, settled
from hvdgrab.balance.bounds import HerdingBound, Places, checked_orders
from hvdgrab.balance.layers import Table, normalise_rows, select_layers, spans_of
from hvdgrab.balance.orders import next_order, seeded_order
from hvdgrab.balance.rules import SeededRule, build_rule
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import UsageError

CHUNK = 2**20
"""Values of the differences balanced in one call: 4 MiB."""


class Pass(NamedTuple):
    """The result of one pass of re-ordering."""

    number: int
    """Counted from 1; 0 for the orders at the start."""
    l2: float
    """ℓ2 parallel herding bound of the orders after the pass (of the values that took part)."""
    linf: float
    """The same in ℓ∞."""
    dropped: int
    """Pairs or gradients that were not balanced because they are not finite."""


def order_offline(
    gradients: Array,
    passes: int = 10,
    rule: str = "cd-grab",
    *,
    seed: int = 0,
    orders: Array | None = None,
    config: BalanceConfig | None = None,
    parameters: Table | None = None,
    layers: Sequence[str] | None = None,
    normalise_layers: bool = False,
    block: int | None = None,
    on_pass: Callable[[Pass], object] | None = None,
    **options: Any,
) -> Any:
    """Order the rows of a stored matrix by repeated balancing, as training orders units whose gradients never change.

    The matrix is only read, a few pairs at a time, and may be a `numpy.memmap` larger than the memory.  Other memory: the orders,
    a running sum, and `block` rows (4 MiB) of differences.

    Example::

        vectors = np.load("gradients.npy", mmap_mode="r")        # (n, d)
        order = order_offline(vectors, passes=5)                 # (n,): see vectors[order[0]] first

    Args:
        gradients: (W, n, d) for W ranks, or (n, d) for one; float16, bfloat16, float32 or float64, NumPy or torch, any strides
            and device.
        passes: number of re-orderings; the bound falls most in the first few.
        rule: a rule of `build_rule`.  ``cd-grab`` balances the pairs of all ranks against one running sum, pair outermost and
            rank innermost (arXiv 2302.00845); the others order each rank alone.
        seed: of the first orders and of random signs.
        orders: (W, n) or (n,) the orders to start from; by default the seed's random ones.
        config: backend, sign rule and the like.
        parameters: where each parameter lies in a gradient, name -> (start, length) or a list of (name, length); the next two
            need it.
        layers: patterns of parameter names: only these parameters take part.
        normalise_layers: divide each parameter's part of each gradient by its norm first.
        block: differences balanced in one call; any number gives the same signs, except for rounding in some backends.
        on_pass: called with a `Pass` for the orders at the start and after each pass.  Each bound costs one more pass over the
            matrix, and the mean costs one.
        **options: of the rule, as in `build_rule`.

    Returns:
        (W, n) or (n,) int64, as `gradients` has ranks or not, of the same kind and on the same device.

    Raises:
        UsageError: wrong kind, shape, dtype or number; a pattern that matches no parameter.
        ConfigError: unknown rule, option or setting.

    Warns:
        UserWarning: gradients that are not finite were left out of the balancing; see `Pass.dropped`.
    """
    if passes < 0 or (block is not None and block < 1):
        raise UsageError(f"passes must be at least 0 and block at least 1, not {passes} and {block}")
    matrix = _matrix_of(gradients, parameters, layers, normalise_layers)
    block = block or max(1, CHUNK // max(1, matrix.d))
    places, one_pass = _start(matrix, rule, seed, orders, config or BalanceConfig(), block, passes, options)
    bounds = HerdingBound(matrix.joint, *matrix.shape) if on_pass is not None else None
    dropped = total = 0
    for number in range(passes + 1):
        if number:
            places, dropped = one_pass(places)
            total += dropped
        if on_pass is not None and bounds is not None:
            on_pass(Pass(number, *bounds.of(places), dropped))
    if total:
        warnings.warn(f"{total} pairs (or gradients) in {passes} passes were not finite and not balanced", stacklevel=2)
    return like(places if matrix.several else places[0], gradients)


@dataclass(frozen=True)
class _Matrix:
    """Stored gradients as rows of the values that take part."""

    values: Array
    """(W, n, D)."""
    spans: tuple[slice, ...]
    """Where the parameters that take part lie in the D values of a row."""
    normalise: bool
    several: bool
    """Whether orders are (W, n) and not (n,)."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(W, n, d), d being the number of values that take part."""
        ranks, n, _ = self.values.shape
        return int(ranks), int(n), self.d

    @property
    def d(self) -> int:
        return sum(span.stop - span.start for span in self.spans)

    @property
    def _whole(self) -> bool:
        """Whether rows can be used as they lie in memory."""
        all_of_it = self.spans == (slice(0, self.values.shape[2]),) and not self.normalise
        return all_of_it and isinstance(self.values, np.ndarray) and self.values.flags.c_contiguous

    def rows(self, ranks: Places | int, units: Places, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """Read the vectors of these units: (m, d), a new array."""
        if isinstance(self.values, np.ndarray) and self._whole:
            every, n, d = self.values.shape
            # whole rows of a contiguous matrix: several times as fast as indexing along two axes
            taken = self.values.reshape(every * n, d).take(ranks * n + units, axis=0)
            with np.errstate(over="ignore"):
                return np.asarray(taken).astype(dtype, copy=False)
        result = np.empty((len(units), self.d), dtype=dtype)
        start, parts = 0, list[slice]()
        with np.errstate(over="ignore"):
            for span in self.spans:
                parts.append(slice(start, start + span.stop - span.start))
                # one parameter at a time, so that values that do not take part are never read
                result[:, parts[-1]] = to_numpy(self.values[ranks, units, span], "gradients")
                start = parts[-1].stop
        if self.normalise:
            normalise_rows(result, parts)
        return result

    def joint(self, units: Sequence[Places]) -> NDArray[np.float64]:
        """See `hvdgrab.balance.bounds.Joint`."""
        sums = np.zeros((len(units[0]), self.d))
        for rank, row in enumerate(units):
            sums += self.rows(rank, row, np.float64)
        return sums


OnePass = Callable[[Places], tuple[Places, int]]
"""Takes orders (W, n), returns the next orders (W, n), a new array, and the number of dropped pairs or gradients."""


@dataclass(frozen=True)
class _PairPasses:
    """Passes of PairBalance, in which each group of ranks shares a running sum."""

    matrix: _Matrix
    groups: list[Places]
    balancers: list[PairBalancer]
    block: int
    dtype: type[np.floating[Any]]

    @classmethod
    def of(
        cls, matrix: _Matrix, coordinated: bool, seed: int, config: BalanceConfig, block: int, passes: int
    ) -> _PairPasses:
        ranks, n, d = matrix.shape
        config = settled(config, d, passes * ranks * (n // 2))
        groups = [np.arange(ranks)] if coordinated else [np.array([rank]) for rank in range(ranks)]
        balancers = [
            PairBalancer(d, config, seed=derived_seed(seed, index), expected=len(group) * (n // 2))
            for index, group in enumerate(groups)
        ]
        return cls(matrix, groups, balancers, block, np.float64 if config.precision == "fp64" else np.float32)

    def __call__(self, places: Places) -> tuple[Places, int]:
        pairs, dropped = places.shape[1] // 2, 0
        signs = np.ones((len(places), pairs), dtype=np.int8)
        for group, balancer in zip(self.groups, self.balancers, strict=True):
            for start in range(0, pairs * len(group), self.block):
                rows = np.arange(start, min(start + self.block, pairs * len(group)))
                ranks, pair = group[rows % len(group)], rows // len(group)  # pair outermost, rank innermost
                signs[ranks, pair], left_out = balancer.feed(self._differences(places, ranks, pair))
                dropped += int(left_out.sum())
            balancer.begin_epoch()
        following = [next_order(order, bits) for order, bits in zip(places, signs, strict=True)]
        return np.array(following, dtype=np.int64).reshape(places.shape), dropped

    def _differences(self, places: Places, ranks: Places, pair: Places) -> NDArray[Any]:
        first = self.matrix.rows(ranks, places[ranks, 2 * pair], self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            first -= self.matrix.rows(ranks, places[ranks, 2 * pair + 1], self.dtype)
        return first


@dataclass(frozen=True)
class _RulePasses:
    """Passes of a rule that orders each rank alone, unit after unit."""

    matrix: _Matrix
    rules: list[Rule]
    block: int

    def __call__(self, places: Places) -> tuple[Places, int]:
        dropped = 0
        for rank, rule in enumerate(self.rules):
            if isinstance(rule, SeededRule):
                continue
            for start in range(0, places.shape[1], self.block):
                for vector in self.matrix.rows(rank, places[rank, start : start + self.block]):
                    rule.add(vector)
            dropped += rule.dropped
        return np.array([rule.next_order() for rule in self.rules]).reshape(places.shape), dropped


def _start(
    matrix: _Matrix,
    rule: str,
    seed: int,
    orders: Array | None,
    config: BalanceConfig,
    block: int,
    passes: int,
    options: dict[str, Any],
) -> tuple[Places, OnePass]:
    """Make the first orders and the function that computes the next ones."""
    ranks, n, d = matrix.shape
    given = None if orders is None else checked_orders(orders if matrix.several else orders[None], ranks, n)
    if rule in ("cd-grab", "id-grab") and not options:
        first = [seeded_order(rule, n=n, epoch=0, seed=seed, rank=rank, size=ranks) for rank in range(ranks)]
        places = np.array(first, dtype=np.int64).reshape(ranks, n) if given is None else given
        return places, _PairPasses.of(matrix, rule == "cd-grab", seed, config, block, passes)
    own: list[dict[str, Any]] = [{"rank": rank, "order": None if given is None else given[rank]} for rank in range(ranks)]
    rules = [build_rule(rule, n=n, d=d, seed=seed, size=ranks, config=config, **each, **options) for each in own]
    return np.array([each.order for each in rules]).reshape(ranks, n), _RulePasses(matrix, rules, block)


def _matrix_of(gradients: Array, parameters: Table | None, layers: Sequence[str] | None, normalise: bool) -> _Matrix:
    check_kind("gradients", gradients)
    dtype = str(gradients.dtype).removeprefix("torch.")
    if gradients.ndim not in (2, 3) or dtype not in ("float16", "bfloat16", "float32", "float64"):
        raise UsageError(
            "gradients must be (W, n, d) or (n, d) of float16, bfloat16, float32 or float64, "
            f"not {tuple(gradients.shape)} of {dtype}"
        )
    several = gradients.ndim == 3
    if 0 in gradients.shape[:-1]:
        raise UsageError(f"there is nothing to order in gradients of shape {tuple(gradients.shape)}")
    if parameters is None and (layers is not None or normalise):
        raise UsageError("layers and normalise_layers need the table of parameters: parameters={name: (start, length), …}")
    d = int(gradients.shape[-1])
    spans = [slice(0, d)]
    if parameters is not None:
        table = spans_of(parameters, d)
        names = list(table)
        spans = [table[names[index]] for index in (range(len(names)) if layers is None else select_layers(names, layers))]
    return _Matrix(gradients if several else gradients[None], tuple(spans), normalise, several)

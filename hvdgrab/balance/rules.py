"""Rules that order the units of ONE rank, behind one interface (`hvdgrab.balance.base.Rule`) and one function, `build_rule`.

A rule that coordinates several ranks (`cd-grab` with W > 1) needs all of them: see `hvdgrab.balance.order_offline` for stored
gradients and `hvdgrab.coordinator` for training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array
from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.balance.base import GradientRule, Rule, derived_seed
from hvdgrab.balance.mean import MeanBalance
from hvdgrab.balance.orders import next_order, seeded_order
from hvdgrab.balance.recursive import RecursiveBalance
from hvdgrab.config import GRADIENT_ORDERS, ORDERS, BalanceConfig
from hvdgrab.errors import ConfigError, StateError, UsageError

SEEDED = tuple(name for name in ORDERS if name not in GRADIENT_ORDERS)
"""Rules that do not look at gradients."""
BALANCED = GRADIENT_ORDERS
"""Rules that look at gradients."""


class PairRule(GradientRule):
    """Balances one rank's own pairs (CD-GraB, arXiv 2302.00845, algorithm 1 for one worker; ID-GraB on each of several).

    Pair k is the units at positions 2k and 2k + 1 of the current order; its sign decides their slots as in `next_order`.  The
    pair of a skipped unit has no sign.  A pair that is not finite gets + and does not change the running sum; `dropped` counts
    such pairs.

    The state is two float32 vectors of the model's length: the running sum and the first gradient of a pair.

    Args:
        n, d, order: as for all rules.
        config: backend, sign rule and the like.
        seed: of random sign rules.
    """

    NAME = "pair-balance"
    dropped: int
    """Pairs of this epoch that were not finite."""

    def __init__(
        self, n: int, d: int, order: Array | None = None, *, config: BalanceConfig | None = None, seed: int = 0
    ) -> None:
        super().__init__(n, d, order)
        self._balancer = PairBalancer(d, config or BalanceConfig(), seed=seed, expected=n // 2)
        self._first = np.empty((1, d), dtype=np.float32)

    def _begin(self) -> None:
        super()._begin()
        self._has_first = False

    def _decide(self, vector: NDArray[np.float32]) -> int:
        if self.position % 2 == 0:
            self._first[0] = vector
            self._has_first = True
            return 0
        if not self._has_first:
            return 0
        self._has_first = False
        self._first[0] -= vector
        signs, dropped = self._balancer.feed(self._first)
        self.dropped += int(dropped[0])
        return int(signs[0])

    def _pass_over(self) -> None:
        self._has_first = False

    def _following(self) -> NDArray[np.int64]:
        self._balancer.begin_epoch()
        result: NDArray[np.int64] = next_order(self._order, np.array(self._signs[1::2], dtype=np.int8))
        return result

    def _own_state(self) -> dict[str, Any]:
        return {"first": self._first[: int(self._has_first)], "balancer": self._balancer.state_dict()}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        first = state["first"]
        if first.shape not in ((0, self.d), (1, self.d)):
            raise StateError(f"the saved {self.NAME} state is damaged: its first gradient has shape {first.shape}")
        self._balancer.load_state_dict(state["balancer"])
        self._first[: len(first)] = first
        self._has_first = len(first) == 1


class SeededRule(GradientRule):
    """The rules of `seeded_order`, functions of seed, epoch and rank; gradients are counted and otherwise ignored.

    Args:
        name: one of `SEEDED`.
        n: units of the rank.
        seed, rank, size, block_size: as for `seeded_order`.

    Raises:
        ConfigError, UsageError: as `seeded_order`.
    """

    dropped: int
    """Always 0."""

    def __init__(self, name: str, n: int, *, seed: int, rank: int = 0, size: int = 1, block_size: int | None = None) -> None:
        if name not in SEEDED:
            raise ConfigError(f"{name!r} is not made from a seed; rules that are: {', '.join(SEEDED)}")
        self.name, self.epoch = name, 0
        self._settings: dict[str, Any] = {"n": n, "seed": seed, "rank": rank, "size": size, "block_size": block_size}
        super().__init__(n, 0, seeded_order(name, epoch=0, **self._settings))

    def add(self, gradient: Array | None) -> int:
        """Count the next unit of the current order; `gradient` may be anything, and the result is always 0.

        Raises:
            UsageError: more gradients than units.
        """
        del gradient
        self.skip()
        return 0

    def _decide(self, vector: NDArray[np.float32]) -> int:
        del vector
        return 0

    def _following(self) -> NDArray[np.int64]:
        self.epoch += 1
        return seeded_order(self.name, epoch=self.epoch, **self._settings)

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "rule": self.name, **self._settings}

    def _own_state(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self.epoch = int(state["epoch"])


@dataclass(frozen=True)
class _Wanted:
    """The arguments of `build_rule`."""

    name: str
    n: int
    d: int
    seed: int
    rank: int
    size: int
    config: BalanceConfig
    order: Array | None
    options: dict[str, Any] = field(default_factory=dict)

    def first_order(self) -> Array:
        """The order given, or that of `rr` in epoch 0: for one seed, all rules that look at gradients share their first epoch."""
        if self.order is not None:
            return self.order
        return seeded_order("rr", n=self.n, epoch=0, seed=self.seed, rank=self.rank, size=self.size)


def build_rule(
    name: str,
    *,
    n: int,
    d: int,
    seed: int = 0,
    rank: int = 0,
    size: int = 1,
    config: BalanceConfig | None = None,
    order: Array | None = None,
    **options: Any,
) -> Rule:
    """Build the rule `name`, which orders one rank's units.

    ====================  ========================================================================================
    ``grab``              mean balance with the stale mean (`MeanBalance`; arXiv 2205.10733)
    ``id-grab``           PairBalance of the rank's own pairs (`PairRule`; arXiv 2302.00845)
    ``cd-grab``           the same, for one rank alone (size 1)
    ``recursive``         recursive pair balance (`RecursiveBalance`); option ``depth``
    all others            `SeededRule` (`seeded_order` lists them and their sources); option ``block_size``
    ====================  ========================================================================================

    Args:
        name: an order of `hvdgrab.GraBConfig`.
        n: units of the rank.
        d: length of a gradient.
        seed: of the first order, of seeded rules and of random sign rules.
        rank: the rank that the rule is for.
        size: number of ranks (W).
        config: how pair differences are balanced; ``grab`` has no pairs and accepts only the default, seeded rules ignore it.
        order: (n,) the first order of a rule that looks at gradients; by default that of ``rr`` in epoch 0.
        **options: of the rule, see above.

    Raises:
        ConfigError: unknown rule or option, or a setting that the rule does not support.
        UsageError: a number out of its range, ``cd-grab`` of several ranks, or a first order that is no permutation.
    """
    if name not in _BUILDERS:
        raise ConfigError(f"unknown rule {name!r}; valid are {', '.join(sorted(_BUILDERS))}")
    build, valid = _BUILDERS[name]
    if foreign := [option for option in options if option not in valid]:
        raise ConfigError(f"rule '{name}' has no option {', '.join(foreign)}; it takes {', '.join(valid) or 'none'}")
    return build(_Wanted(name, n, d, seed, rank, size, config or BalanceConfig(), order, options))


def _mean(wanted: _Wanted) -> Rule:
    # its loop is in NumPy, as "reference" is
    own = {**BalanceConfig().model_dump(), "backend": wanted.config.backend if wanted.config.backend == "reference" else "auto"}
    changed = [name for name, value in wanted.config if value != own[name]]
    if changed:
        raise ConfigError(
            f"rule 'grab' balances gradients one by one, not in pairs: it has no {', '.join(changed)}; "
            "leave the balance section out, or choose id-grab or recursive"
        )
    return MeanBalance(wanted.n, wanted.d, wanted.first_order())


def _pair(wanted: _Wanted) -> Rule:
    if wanted.name == "cd-grab" and wanted.size > 1:
        raise UsageError(
            f"rule 'cd-grab' coordinates {wanted.size} ranks, which no rule of one rank can do: "
            "use order_offline() on stored gradients, a coordinator in training, or id-grab"
        )
    return PairRule(wanted.n, wanted.d, wanted.first_order(), config=wanted.config, seed=derived_seed(wanted.seed, wanted.rank))


def _recursive(wanted: _Wanted) -> Rule:
    seed = derived_seed(wanted.seed, wanted.rank)
    return RecursiveBalance(wanted.n, wanted.d, wanted.first_order(), config=wanted.config, seed=seed, **wanted.options)


def _seeded(wanted: _Wanted) -> Rule:
    if wanted.order is not None:
        raise UsageError(f"rule '{wanted.name}' makes its first order from the seed: leave order out")
    return SeededRule(wanted.name, wanted.n, seed=wanted.seed, rank=wanted.rank, size=wanted.size, **wanted.options)


_BUILDERS: dict[str, tuple[Callable[[_Wanted], Rule], tuple[str, ...]]] = {
    "grab": (_mean, ()),
    "id-grab": (_pair, ()),
    "cd-grab": (_pair, ()),
    "recursive": (_recursive, ("depth",)),
    **dict.fromkeys(SEEDED, (_seeded, ())),
    "block-reversal": (_seeded, ("block_size",)),
}

"""The interface of all rules that order one rank's units, and the bookkeeping of units within an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, to_numpy
from hvdgrab.balance.backends.choose import choose
from hvdgrab.balance.orders import is_permutation
from hvdgrab.balance.sign_rules import SignRule
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import StateError, UsageError


class Rule(Protocol):
    """Orders the units of ONE rank, epoch after epoch.

    In each epoch the caller calls `add`, or `skip` for a unit without a gradient, once for every unit seen, in the current order;
    then it calls `next_order` to end the epoch, early or not.
    """

    dropped: int
    """Gradients, or pairs, of this epoch that were not balanced because they are not finite."""

    @property
    def order(self) -> NDArray[np.int64]:
        """The current epoch's order: (n,) int64, a copy."""

    @property
    def position(self) -> int:
        """Units of this epoch counted so far."""

    def add(self, gradient: Array) -> int:
        """Count the next unit of the current order.

        Args:
            gradient: (d,) floating point, on any device; read only, not kept by reference.

        Returns:
            The sign that it decided, +1 or -1, of the unit or of the pair that it completes; 0 if it decided none.

        Raises:
            UsageError: another shape, or more gradients than units.
        """

    def skip(self) -> None:
        """Skip the next unit of the current order, which had no gradient.

        Raises:
            UsageError: all units of the epoch have been counted.
        """

    def next_order(self) -> NDArray[np.int64]:
        """End the epoch; make the next order the current one and return it, (n,) int64, a new array."""

    def state_dict(self) -> dict[str, Any]:
        """What is needed to resume in the middle of an epoch: numbers and CPU tensors that share no memory with this object."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the point at which `state_dict` was called; `state` is copied.

        Raises:
            StateError: `state` is of another rule or run.
        """


class GradientRule(ABC):
    """Base of rules that look at gradients: it counts units, keeps their order, and saves and restores the state.

    Args:
        n: units of the rank.
        d: length of a gradient.
        order: (n,) the order of the first epoch; 0 … n - 1 by default.

    Raises:
        UsageError: n below 1, d below 0, or an order that is no permutation.
    """

    NAME = "rule"
    """Name of the rule in messages and saved states."""
    VERSION = 1
    """Version of the saved state."""
    dropped: int
    """Gradients, or pairs, of this epoch that were not finite."""
    _order: NDArray[np.int64]
    _signs: list[int]
    """What `add` returned for every unit of this epoch so far; 0 for a unit that was skipped."""

    def __init__(self, n: int, d: int, order: Array | None = None) -> None:
        if n < 1 or d < 0:
            raise UsageError(f"{self.NAME} needs n >= 1 units and gradients of d >= 0 values, not n = {n} and d = {d}")
        self.n, self.d = n, d
        self._order = np.arange(n, dtype=np.int64) if order is None else np.array(to_numpy(order, "order"), dtype=np.int64)
        if self._order.shape != (n,) or not is_permutation(self._order):
            raise UsageError(f"the first order must be a permutation of 0 … {n - 1}")
        self._begin()

    @property
    def order(self) -> NDArray[np.int64]:
        """The current epoch's order: (n,) int64, a copy."""
        order: NDArray[np.int64] = self._order.copy()
        return order

    @property
    def position(self) -> int:
        """Units of this epoch counted so far."""
        return len(self._signs)

    def add(self, gradient: Array) -> int:
        """Count the next unit of the current order.

        Args:
            gradient: (d,) floating point, on any device; read only, not kept by reference.

        Returns:
            The sign that it decided, +1 or -1; 0 if it decided none.

        Raises:
            UsageError: another shape, or more gradients than units.
        """
        self._check_room()
        with np.errstate(over="ignore", invalid="ignore"):
            vector = to_numpy(gradient, "gradient").astype(np.float32, copy=False)
            if vector.shape != (self.d,):
                raise UsageError(f"the gradient must have shape ({self.d},), not {vector.shape}")
            sign = self._decide(vector)
        self._signs.append(sign)
        return sign

    def skip(self) -> None:
        """Skip the next unit of the current order, which had no gradient; it will fill a free slot.

        Raises:
            UsageError: all units of the epoch have been counted.
        """
        self._check_room()
        self._pass_over()
        self._signs.append(0)

    def next_order(self) -> NDArray[np.int64]:
        """End the epoch, early or not; make the next order the current one and return it, (n,) int64, a new array."""
        self._order = self._following()
        self._begin()
        return self.order

    def state_dict(self) -> dict[str, Any]:
        """What is needed to resume in the middle of an epoch: numbers and CPU tensors that share no memory with this object."""
        state: dict[str, Any] = {**self._facts(), "dropped": self.dropped, "order": self._order}
        return cast("dict[str, Any]", to_tensors({**state, "signs": np.array(self._signs, dtype=np.int8), **self._own_state()}))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the point at which `state_dict` was called; `state` is copied.

        Raises:
            StateError: `state` is of another rule, version, number of units or gradient length, or is damaged.
        """
        for name, here in self._facts().items():
            if state.get(name) != here:
                raise StateError(f"the saved {self.NAME} state has {name} = {state.get(name)}, this run has {here}")
        arrays = to_arrays(state)
        order, signs = arrays["order"].astype(np.int64), arrays["signs"]
        if order.shape != (self.n,) or not is_permutation(order) or len(signs) > self.n:
            raise StateError(f"the saved {self.NAME} state is damaged: it holds no permutation of {self.n} units and their signs")
        self._load_own_state(arrays)
        self._order, self._signs = order, [int(sign) for sign in signs]
        self.dropped = int(state["dropped"])

    def _facts(self) -> dict[str, Any]:
        """The values that a saved state must share with this object."""
        return {"version": self.VERSION, "rule": self.NAME, "n": self.n, "d": self.d}

    def _begin(self) -> None:
        """Start an epoch; overriding methods call this one."""
        self._signs = []
        self.dropped = 0

    @abstractmethod
    def _decide(self, vector: NDArray[np.float32]) -> int:
        """Decide the sign of a unit's gradient, (d,) float32, possibly the caller's own memory."""

    @abstractmethod
    def _following(self) -> NDArray[np.int64]:
        """Compute the next epoch's order."""

    def _pass_over(self) -> None:  # noqa: B027 - most rules have nothing to do
        """Handle a unit without a gradient."""

    def _own_state(self) -> dict[str, Any]:
        """Numbers and NumPy arrays, possibly in dictionaries and lists, that the rule needs to resume."""
        return {}

    def _load_own_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - the same
        """Restore what `_own_state` returned; this object may keep the NumPy arrays."""

    def _check_room(self) -> None:
        if self.position >= self.n:
            raise UsageError(f"all {self.n} units of this epoch were counted already: call next_order() before the next epoch")


def settled(config: BalanceConfig, width: int, count: int) -> BalanceConfig:
    """`config` with ``auto`` replaced by the backend that it picks for `count` vectors in all."""
    rule = SignRule(config.sign_rule, config.damping)
    picked = choose(config.backend, device="cpu", width=width, count=count, rule=rule, float64=config.precision == "fp64")
    return config.model_copy(update={"backend": picked.name})


def derived_seed(seed: int, index: int) -> int:
    """A seed for each of several streams; the first is `seed` itself, so that a single stream is that of `seed`."""
    return seed if index == 0 else int(np.random.SeedSequence([seed % 2**64, index]).generate_state(1, np.uint64)[0])


def to_tensors(value: Any) -> Any:
    """Copy a state, with CPU tensors for NumPy arrays, as ``torch.load(weights_only=True)`` needs."""
    import torch  # here, so that importing this module loads no torch

    if isinstance(value, dict):
        return {name: to_tensors(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_tensors(item) for item in value]
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def to_arrays(value: Any) -> Any:
    """Copy a state, with NumPy arrays for tensors: the inverse of `to_tensors`."""
    if isinstance(value, dict):
        return {name: to_arrays(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_arrays(item) for item in value]
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        return np.array(to_numpy(value, "state"))
    return value

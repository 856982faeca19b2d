"""Mean balance: the order of GraB on one rank (Lu, Guo and De Sa, NeurIPS 2022, arXiv 2205.10733, algorithm 4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, to_numpy
from hvdgrab.balance.orders import is_permutation
from hvdgrab.errors import StateError, UsageError

VERSION = 1
_VECTORS = ("h", "stale_mean", "total")


class MeanBalance:
    """Balances every unit's gradient, centred by the mean of the previous epoch, as it passes.

    For each unit in the current order: c = g - m; s = +1 if <h, c> <= 0 else -1; h = h + s·c.  Units with +1 fill the next
    order from its front, units with -1 from its back.  h starts every epoch at zero, and m, the mean of the epoch before, is
    zero in the first.  A gradient that is not finite gives its unit +1 and touches nothing else; `dropped` counts them.

    The state is three float32 vectors of the model's length.

    Args:
        n: units of the rank.
        d: length of a gradient.
        order: (n,) the order of the first epoch; 0 … n - 1 by default.

    Raises:
        UsageError: n below 1, d below 0, or no permutation.
    """

    dropped: int
    """Gradients of this epoch that were not finite."""
    _order: NDArray[np.int64]
    _signs: list[int]

    def __init__(self, n: int, d: int, order: Array | None = None) -> None:
        if n < 1 or d < 0:
            raise UsageError(f"mean balance needs n >= 1 units and gradients of d >= 0 values, not n = {n} and d = {d}")
        self.n, self.d = n, d
        self._order = np.arange(n, dtype=np.int64) if order is None else np.array(to_numpy(order, "order"), dtype=np.int64)
        if self._order.shape != (n,) or not is_permutation(self._order):
            raise UsageError(f"the first order must be a permutation of 0 … {n - 1}")
        self._stale_mean = np.zeros(d, dtype=np.float32)
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
            gradient: (d,) floating point, on any device; read only, not kept.

        Returns:
            The unit's sign, +1 or -1.

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
        """Pass over the next unit of the current order: it had no gradient, and will fill a free slot.

        Raises:
            UsageError: all units of the epoch were counted already.
        """
        self._check_room()
        self._signs.append(0)

    def next_order(self) -> NDArray[np.int64]:
        """End the epoch, early or not: the next epoch's order becomes the current one and is returned, (n,) int64, a new array.

        Units without a gradient fill the slots that the others leave free, in their current order.  An epoch without any
        finite gradient leaves the stale mean as it was.
        """
        signs = np.array(self._signs + [0] * (self.n - self.position), dtype=np.int8)
        front, back = self._order[signs > 0], self._order[signs < 0][::-1]
        self._order = np.concatenate([front, self._order[signs == 0], back])
        if self._counted:
            self._stale_mean = self._total / np.float32(self._counted)
        self._begin()
        return self.order

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on in the middle of an epoch: numbers and CPU tensors that share no memory with this object."""
        import torch  # Saved states are torch's business; importing this module is not.

        state: dict[str, Any] = {"version": VERSION, "n": self.n, "d": self.d, "counted": self._counted, "dropped": self.dropped}
        state.update({name: torch.from_numpy(getattr(self, f"_{name}").copy()) for name in _VECTORS})
        state["order"] = torch.from_numpy(self._order.copy())
        state["signs"] = torch.tensor(self._signs, dtype=torch.int8)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called; `state` is copied.

        Raises:
            StateError: another version, number of units or gradient length.
        """
        for name, here in (("version", VERSION), ("n", self.n), ("d", self.d)):
            if state.get(name) != here:
                raise StateError(f"the saved mean-balance state has {name} = {state.get(name)}, this run has {here}")
        for name in _VECTORS:
            setattr(self, f"_{name}", np.array(to_numpy(state[name], name), dtype=np.float32))
        self._order = np.array(to_numpy(state["order"], "order"), dtype=np.int64)
        self._signs = [int(sign) for sign in to_numpy(state["signs"], "signs")]
        self._counted, self.dropped = int(state["counted"]), int(state["dropped"])

    def _begin(self) -> None:
        self._h = np.zeros(self.d, dtype=np.float32)
        self._total = np.zeros(self.d, dtype=np.float32)
        self._signs = []
        self._counted = 0
        self.dropped = 0

    def _decide(self, vector: NDArray[np.float32]) -> int:
        centred = vector - self._stale_mean
        product = float(np.dot(self._h, centred))
        if not math.isfinite(product):
            self.dropped += 1
            return 1
        self._total += vector
        self._counted += 1
        if product <= 0:
            self._h += centred
            return 1
        self._h -= centred
        return -1

    def _check_room(self) -> None:
        if self.position >= self.n:
            raise UsageError(f"all {self.n} units of this epoch were counted already: call next_order() before the next epoch")

"""Mean balance: the order of GraB on one rank (Lu, Guo and De Sa, NeurIPS 2022, arXiv 2205.10733, algorithm 4)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array
from hvdgrab.balance.base import GradientRule

_VECTORS = ("h", "stale_mean", "total")


class MeanBalance(GradientRule):
    """Balances every unit's gradient as it comes, centred by the mean of the previous epoch.

    For each unit in the current order: c = g - m; s = +1 if <h, c> <= 0 else -1; h = h + s·c.  Units with +1 fill the next
    order from its front, units with -1 from its back.  h starts every epoch at zero, and m, the mean of the epoch before, is
    zero in the first.  A gradient that is not finite gives its unit +1 and touches nothing else; `dropped` counts them.

    The state is three float32 vectors of the model's length.

    Args:
        n: units of the rank.
        d: length of a gradient.
        order: (n,) the order of the first epoch; 0 … n - 1 by default.

    Raises:
        UsageError: n below 1, d below 0, or an order that is no permutation.
    """

    NAME = "mean-balance"
    dropped: int
    """Gradients of this epoch that were not finite."""

    def __init__(self, n: int, d: int, order: Array | None = None) -> None:
        super().__init__(n, d, order)
        self._stale_mean = np.zeros(d, dtype=np.float32)

    def next_order(self) -> NDArray[np.int64]:
        """End the epoch, early or not; make the next order the current one and return it, (n,) int64, a new array.

        Units without a gradient fill the remaining slots in their current order.  An epoch without any finite gradient does not
        change the stale mean.
        """
        if self._counted:
            self._stale_mean = self._total / np.float32(self._counted)
        return super().next_order()

    def _begin(self) -> None:
        super()._begin()
        self._h = np.zeros(self.d, dtype=np.float32)
        self._total = np.zeros(self.d, dtype=np.float32)
        self._counted = 0

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

    def _following(self) -> NDArray[np.int64]:
        signs = np.array(self._signs + [0] * (self.n - self.position), dtype=np.int8)
        front, back = self._order[signs > 0], self._order[signs < 0][::-1]
        return np.concatenate([front, self._order[signs == 0], back])

    def _own_state(self) -> dict[str, Any]:
        return {"counted": self._counted, **{name: getattr(self, f"_{name}") for name in _VECTORS}}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        for name in _VECTORS:
            setattr(self, f"_{name}", state[name])
        self._counted = int(state["counted"])

"""The literal loop: one vector after the other, every sign rule; tests compare every other backend with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, host_blocks
from hvdgrab.balance.sign_rules import SignRule, decide, refuse_bad_sum, threshold

Decision = tuple[NDArray[np.int8], NDArray[np.bool_]]


def balance(differences: Array, h: NDArray[Any], rule: SignRule) -> Decision:
    """Compute signs and drops of all rows, as defined in `hvdgrab.balance.pairs`.

    Args:
        differences: (m, d), any kind, floating type and strides; converted to h's type.
        h: (d,) float32 or float64, contiguous, updated in place; inner products are `numpy.dot` in its type.
        rule: its counter and state are updated.

    Returns:
        signs (m,) int8 and dropped (m,) bool.

    Raises:
        UsageError: h is not finite.
    """
    m = len(differences)
    signs, dropped = np.ones(m, dtype=np.int8), np.zeros(m, dtype=bool)
    uniform = rule.draw(m)
    i = 0
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for block in host_blocks(differences, h.dtype):
            for row in block:
                signs[i], dropped[i] = _one(row, h, rule, float(uniform[i]))
                i += 1
    return signs, dropped


def _one(row: NDArray[Any], h: NDArray[Any], rule: SignRule, uniform: float) -> tuple[int, bool]:
    damped = h if rule.damping == 1.0 else h * h.dtype.type(rule.damping)
    product = float(np.dot(damped, row))
    square = 0.0 if rule.plain else float(np.dot(row, row))
    # if h is finite, a non-finite value in the row makes the product non-finite (0·inf is NaN): no other check is needed
    if not (math.isfinite(product) and math.isfinite(square)):
        refuse_bad_sum(h)
        return 1, True
    sign = decide(product, threshold(rule.code, square, rule.state), uniform)
    if sign > 0:
        np.add(damped, row, out=h)
    else:
        np.subtract(damped, row, out=h)
    return sign, False

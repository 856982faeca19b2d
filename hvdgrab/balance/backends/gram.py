"""The torch backend: PairBalance in block Gram form, on any device (DESIGN, "Order engine: cost").

For a block D of B vectors, G = D·Dᵀ and c = D·h hold everything that the B signs depend on:

    s_k = the rule at c_k;   c = c + s_k·G_k;   at the end   h = h + Dᵀ·s

The vectors are read twice, by matrix products; B² + B numbers go to the host once a block, never once a vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.sign_rules import SignRule, decide, refuse_bad_sum, threshold

if TYPE_CHECKING:
    import torch

BLOCK = 64
"""Vectors of a block: 2·B·d multiplications a vector on the device, and the host waits once for B of them."""

Weights = tuple[float, NDArray[np.float64]]
"""Factor of h at the end of a block, and the factors of the vectors that are then added, (B,)."""


def balance(differences: torch.Tensor, h: torch.Tensor, rule: SignRule) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute signs and drops of all rows on their device, for every sign rule.

    If G or c of a block holds a non-finite value, its vectors are balanced one at a time, literally, so that drops equal those of
    the reference.  Products are computed in h's type in full precision, whatever TF32 or autocast setting is active.

    Args:
        differences: (m, d), any floating type and strides; converted to h's type a block at a time.
        h: (d,) float32 or float64 on the same device, updated in place.
        rule: its counter and state are updated.

    Raises:
        UsageError: h is not finite.
    """
    import torch

    m = len(differences)
    signs = np.ones(m, dtype=np.int8)
    dropped = np.zeros(m, dtype=bool)
    uniform = rule.draw(m)
    precision = torch.get_float32_matmul_precision()
    try:
        if precision != "highest":
            torch.set_float32_matmul_precision("highest")
        with torch.no_grad(), torch.autocast(h.device.type, enabled=False):
            for start in range(0, m, BLOCK):
                part = slice(start, start + BLOCK)
                rows = differences[part].detach().to(h.dtype)
                _balance_block(rows, h.detach(), rule, uniform[part], signs[part], dropped[part])
    finally:
        if precision != "highest":
            torch.set_float32_matmul_precision(precision)
    return torch.from_numpy(signs).to(differences.device), torch.from_numpy(dropped).to(differences.device)


def _balance_block(
    rows: torch.Tensor,
    h: torch.Tensor,
    rule: SignRule,
    uniform: NDArray[np.float64],
    signs: NDArray[np.int8],
    dropped: NDArray[np.bool_],
) -> None:
    import torch

    both = torch.cat([rows @ rows.t(), (rows @ h)[:, None]], dim=1).cpu().double().numpy()
    gram, products = both[:, :-1], both[:, -1]
    if not np.isfinite(both).all():
        _one_by_one(rows, h, rule, uniform, signs, dropped)
        return
    scale, weights = recurrence(gram, products, rule, uniform)
    signs[:] = np.sign(weights)
    update = torch.from_numpy(weights).to(device=h.device, dtype=h.dtype)
    torch.addmv(h, rows.t(), update, beta=scale, out=h)


def recurrence(gram: NDArray[np.float64], products: NDArray[np.float64], rule: SignRule, uniform: NDArray[np.float64]) -> Weights:
    """Compute the signs of a block from its Gram matrix and its products with the running sum.

    Worked example: G = [[1, 2], [2, 5]], c = [0, 0]: s0 = +1 since c0 = 0; then c1 = 0 + 2 = 2 > 0, so s1 = -1.

    Args:
        gram: (B, B) finite.
        products: (B,) finite.
        rule: its state is updated, but not its counter.
        uniform: (B,) the rule's random numbers.
    """
    c = products.copy()
    weights = np.zeros(len(c))
    scale = 1.0
    for k, row in enumerate(gram):
        c *= rule.damping
        weights *= rule.damping
        scale *= rule.damping
        square = float(row[k])
        weights[k] = decide(float(c[k]), threshold(rule.code, square, rule.state), float(uniform[k]))
        c += weights[k] * row
    return scale, weights


def _one_by_one(
    rows: torch.Tensor,
    h: torch.Tensor,
    rule: SignRule,
    uniform: NDArray[np.float64],
    signs: NDArray[np.int8],
    dropped: NDArray[np.bool_],
) -> None:
    for k, row in enumerate(rows):
        damped = h * rule.damping
        product = float(damped @ row)
        square = 0.0 if rule.plain else float(row @ row)
        if not (np.isfinite(product) and np.isfinite(square)):
            dropped[k] = True
            continue
        signs[k] = decide(product, threshold(rule.code, square, rule.state), float(uniform[k]))
        h.copy_(damped.add_(row, alpha=int(signs[k])))
    if dropped.any():
        refuse_bad_sum(h.cpu().numpy())

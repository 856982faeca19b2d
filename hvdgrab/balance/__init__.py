"""Balance rules: which order a rank's units take next.  Pure: NumPy and torch, no communication; importing it loads no torch."""

from __future__ import annotations

from hvdgrab.balance.bounds import herding_bound
from hvdgrab.balance.mean import MeanBalance
from hvdgrab.balance.meters import BoundExact, BoundResult, BoundSketch
from hvdgrab.balance.orders import next_order, seeded_order
from hvdgrab.balance.pairs import balance_pairs, pair_balance

__all__ = [
    "BoundExact",
    "BoundResult",
    "BoundSketch",
    "MeanBalance",
    "balance_pairs",
    "herding_bound",
    "next_order",
    "pair_balance",
    "seeded_order",
]

"""Balance rules: which order a rank's units take next.  Pure: NumPy and torch, no communication; importing it loads no torch."""

from __future__ import annotations

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.balance.base import Rule
from hvdgrab.balance.bounds import herding_bound, herding_bound_stream, relative_bound
from hvdgrab.balance.layers import select_layers
from hvdgrab.balance.mean import MeanBalance
from hvdgrab.balance.meters import BoundExact, BoundResult, BoundSketch
from hvdgrab.balance.offline import order_offline
from hvdgrab.balance.orders import next_order, seeded_order
from hvdgrab.balance.pairs import balance_pairs, pair_balance
from hvdgrab.balance.recursive import RecursiveBalance
from hvdgrab.balance.rules import PairRule, SeededRule, build_rule

__all__ = [
    "BoundExact",
    "BoundResult",
    "BoundSketch",
    "MeanBalance",
    "PairBalancer",
    "PairRule",
    "RecursiveBalance",
    "Rule",
    "SeededRule",
    "balance_pairs",
    "build_rule",
    "herding_bound",
    "herding_bound_stream",
    "next_order",
    "order_offline",
    "pair_balance",
    "relative_bound",
    "seeded_order",
    "select_layers",
]

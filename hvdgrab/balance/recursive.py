"""Recursive pair balance of one rank's units: PairBalance inside PairBalance, a binary tree of running sums.

The idea and the default depth are those of the public package grab-sampler (its RecursiveBalance and RecursivePairBalance).  It
works because of the recursion of Lu, Guo and De Sa (arXiv 2205.10733, section 4: every balanced reordering halves the distance to
the best reachable bound), here done several times within an epoch instead of once an epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array
from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.balance.base import GradientRule, derived_seed, settled
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import ConfigError, StateError

DEPTH = 5
DEEPEST = 12


class RecursiveBalance(GradientRule):
    """Balances pairs at every node of a binary tree of depth `depth` (2^depth leaves) while gradients pass down the tree.

    All gradients enter at the root.  At every node two consecutive arrivals are a pair, balanced by the literal rule
    against the node's own running sum; with + the first goes on to the left child and the second to the right, with - the
    other way round.  The next order reads the tree from left to right: at a node, all of the left child, then the unit that
    still waits there for a partner, then all of the right child; at a leaf, the units as they came, or reversed if the leaf
    is a right child.  Hence depth 1 is PairBalance, and if n is a multiple of 2^depth, all leaves hold equally many units.

    Pairs at the root are those of the current order (positions 2k and 2k + 1).  The partner of a skipped unit is skipped too;
    skipped units and units never seen stand in the middle of the next order, in their current order.  A pair that is not finite
    gets + and does not change the sum of any node that it passes; `dropped` counts it once, at the root.

    The state is 2·(2^depth - 1) vectors of the model's length in float32, a running sum and a waiting gradient for every node (62
    for depth 5); a waiting gradient is allocated when its node is first reached.  The rule is meant for sketches or small models.
    A unit costs depth / 2 balancing steps on average.

    Args:
        n: units of the rank.
        d: length of a gradient.
        order: (n,) the order of the first epoch; 0 … n - 1 by default.
        config: backend, sign rule and the like, for every node.
        seed: of random sign rules; every node has a stream of its own.
        depth: of the tree, 1 … 12.

    Raises:
        UsageError: n below 1, d below 0, or an order that is no permutation.
        ConfigError: a depth out of range.
    """

    NAME = "recursive-balance"
    dropped: int
    """Pairs of consecutive units of this epoch that were not finite."""

    def __init__(
        self,
        n: int,
        d: int,
        order: Array | None = None,
        *,
        config: BalanceConfig | None = None,
        seed: int = 0,
        depth: int = DEPTH,
    ) -> None:
        if not 1 <= depth <= DEEPEST:
            raise ConfigError(f"the depth of recursive balance must lie in 1 … {DEEPEST}, not {depth}")
        self.depth = depth
        self._nodes = 2**depth - 1
        super().__init__(n, d, order)
        chosen = settled(config or BalanceConfig(), d, depth * (n // 2))
        self._balancers = [
            PairBalancer(d, chosen, seed=derived_seed(seed, node), expected=n // 2 // 2 ** _level(node))
            for node in range(self._nodes)
        ]
        self._vectors: list[NDArray[np.float32] | None] = [None] * self._nodes
        self._difference = np.empty((1, d), dtype=np.float32)

    def _begin(self) -> None:
        super()._begin()
        # positions in the current order: of the unit that waits at each node (-1: none), and of the units that arrived at each
        # leaf
        self._waiting = [-1] * self._nodes
        self._leaves: list[list[int]] = [[] for _ in range(self._nodes + 1)]

    def _decide(self, vector: NDArray[np.float32]) -> int:
        second = self.position % 2 == 1
        if second and self._waiting[0] < 0:  # the first of the pair was skipped
            return 0
        decided = self._arrive(0, self.position, vector)
        if decided is None:
            return 0
        sign, dropped = decided
        self.dropped += dropped
        return sign

    def _pass_over(self) -> None:
        self._waiting[0] = -1

    def _arrive(self, node: int, position: int, vector: NDArray[np.float32]) -> tuple[int, bool] | None:
        """Pass a unit's gradient to a node or leaf; return the sign that the node decided, or 0."""
        if node >= self._nodes:
            self._leaves[node - self._nodes].append(position)
            return None
        first, self._waiting[node] = self._waiting[node], -1
        kept = self._vectors[node]
        if first < 0 or kept is None:
            self._waiting[node] = position
            self._vectors[node] = _stored(vector, kept)
            return None
        np.subtract(kept, vector, out=self._difference[0])
        signs, dropped = self._balancers[node].feed(self._difference)
        pair = ((first, kept), (position, vector))
        left, right = pair if signs[0] > 0 else pair[::-1]
        # the children copy, and this node's memory is overwritten only by its next unit
        self._arrive(2 * node + 1, *left)
        self._arrive(2 * node + 2, *right)
        return int(signs[0]), bool(dropped[0])

    def _following(self) -> NDArray[np.int64]:
        placed = np.zeros(self.n, dtype=bool)
        placed[[position for position in self._waiting[1:] if position >= 0]] = True
        for leaf in self._leaves:
            placed[leaf] = True
        positions = self._read(0, np.flatnonzero(~placed).tolist())
        for balancer in self._balancers:
            balancer.begin_epoch()
        result: NDArray[np.int64] = self._order[positions]
        return result

    def _read(self, node: int, middle: list[int]) -> list[int]:
        """List the positions below a node from left to right; `middle` stands between its children."""
        children = []
        for child in (2 * node + 1, 2 * node + 2):
            if child >= self._nodes:
                leaf = self._leaves[child - self._nodes]
                children.append(leaf if child % 2 else leaf[::-1])
            else:
                waiting = self._waiting[child]
                children.append(self._read(child, [waiting] if waiting >= 0 else []))
        return [*children[0], *middle, *children[1]]

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "depth": self.depth}

    def _own_state(self) -> dict[str, Any]:
        waiting = [node for node in range(self._nodes) if self._waiting[node] >= 0]
        return {
            "waiting": np.array(self._waiting, dtype=np.int64),
            "vectors": {str(node): self._vectors[node] for node in waiting},
            "leaves": [np.array(leaf, dtype=np.int64) for leaf in self._leaves],
            "nodes": [balancer.state_dict() for balancer in self._balancers],
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        vectors = {int(node): vector for node, vector in state["vectors"].items()}
        waiting = [int(position) for position in state["waiting"]]
        if len(waiting) != self._nodes or {node for node in range(self._nodes) if waiting[node] >= 0} != set(vectors):
            raise StateError(f"the saved {self.NAME} state is damaged: its waiting units and their gradients do not match")
        for balancer, saved in zip(self._balancers, state["nodes"], strict=True):
            balancer.load_state_dict(saved)
        self._waiting, self._leaves = waiting, [leaf.tolist() for leaf in state["leaves"]]
        self._vectors = [vectors.get(node) for node in range(self._nodes)]


def _stored(vector: NDArray[np.float32], memory: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Copy `vector`, to `memory` if there is some."""
    result = np.empty_like(vector) if memory is None else memory
    result[...] = vector
    return result


def _level(node: int) -> int:
    return (node + 1).bit_length() - 1

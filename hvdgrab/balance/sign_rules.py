"""Sign rules: how +1 or -1 follows from the inner product of a vector with the running sum.

All three are one comparison, s = +1 if <h, d> <= (1 - 2u)·a else -1, with u uniform in [0, 1) and a threshold a >= 0; hence
P(+1) = 1/2 - <h, d>/(2a), clipped to 0 … 1.

===========  =====================================================================================================
``greedy``   a = 0, no randomness: the sign that does not lengthen the sum (PairBalance: Cooper et al., NeurIPS 2023,
             arXiv 2302.00845, algorithm 1)
``walk``     self-balancing walk (Alweiss, Liu and Sawhney, STOC 2021, arXiv 2006.14009): a = c·R², R the largest norm so far,
             by which the walk's vectors of norm at most 1 are scaled
``halving``  kernel halving with the linear kernel (Carrell et al., ICML 2025, arXiv 2502.12063; its threshold: Dwivedi and
             Mackey, arXiv 2105.05842, algorithm 1): b = ‖d‖, a = max(b·σ·sqrt(2·ln(2/δ)), b²), then
             σ² = σ² + b²·max(0, 1 + (b² - 2a)·σ²/a²), σ = 0 at the start of an epoch
===========  =====================================================================================================

The proof of the walk needs c = 30·ln(vectors · dimension / δ).  For the number of vectors of a training epoch, that makes the
signs nearly independent of the sum, so c = 1 here.  Likewise δ = 1/2 for every vector; the union bound of the theory, whose δ
falls with the number of vectors, would only bring the signs nearer to chance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.errors import ConfigError, StateError, UsageError

GREEDY, WALK, HALVING = 0, 1, 2
CODES = {"greedy": GREEDY, "walk": WALK, "halving": HALVING}
WALK_CONSTANT = 1.0
HALVING_PENALTY = 2.0 * math.log(2.0 / 0.5)
_WORD = 2**64


def threshold(code: int, square: float, state: NDArray[np.float64]) -> float:
    """Compute the threshold a for a vector of squared norm `square`; update the rule's state, (1,): R² (walk) or σ² (halving).

    Plain arithmetic only, because the compiled backend compiles this function.
    """
    if code == WALK:
        state[0] = max(state[0], square)
        return WALK_CONSTANT * float(state[0])
    if code == HALVING and square > 0.0:
        variance = float(state[0])
        a = max(math.sqrt(square) * math.sqrt(variance) * math.sqrt(HALVING_PENALTY), square)
        # divide twice by a instead of once by a², which underflows first
        state[0] = variance + square * max(0.0, 1.0 + (square / a - 2.0) * (variance / a))
        return a
    return 0.0


def decide(product: float, threshold: float, uniform: float) -> int:
    """Decide +1 or -1; greedy if the threshold is 0.  Worked example: product 1, threshold 2 gives +1 for u <= 1/4."""
    return 1 if product <= (1.0 - 2.0 * uniform) * threshold else -1


def uniforms(seed: int, epoch: int, first: int, count: int) -> NDArray[np.float64]:
    """Draw the numbers `first` … `first + count - 1` of the stream of (seed, epoch): (count,) float64 in [0, 1).

    The generator is counter-based (Philox: Salmon et al., SC 2011): each number depends on (seed, epoch, its index) alone, so
    that neither the grouping of vectors into calls nor save and restore can change it.
    """
    # a counter yields four 64-bit words
    counter, skip = divmod(first, 4)
    stream = np.random.Philox(counter=counter, key=np.array([seed, epoch], dtype=np.uint64))
    words = np.asarray(stream.random_raw(skip + count), dtype=np.uint64)[skip:]
    result: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return result


class SignRule:
    """A sign rule with its state: one number, the epoch, and the number of vectors seen in it.

    Args:
        kind: "greedy", "walk" or "halving".
        damping: factor of the running sum before each vector that is not dropped, 0 < damping <= 1.
        seed: of the random rules, 0 <= seed < 2^64.

    Raises:
        ConfigError: unknown kind, or a number out of its range.
    """

    def __init__(self, kind: str = "greedy", damping: float = 1.0, seed: int = 0) -> None:
        if kind not in CODES:
            raise ConfigError(f"unknown sign rule {kind!r}; valid are {', '.join(map(repr, CODES))}")
        if not 0.0 < damping <= 1.0:
            raise ConfigError(f"damping must lie in (0, 1], not {damping}")
        if not 0 <= seed < _WORD:
            raise ConfigError(f"the seed of a sign rule must lie in 0 … 2^64 - 1, not {seed}")
        self.kind, self.damping, self.seed = kind, float(damping), int(seed)
        self.code = CODES[kind]
        self.epoch = 0
        self.index = 0
        self.state: NDArray[np.float64] = np.zeros(1)

    @property
    def plain(self) -> bool:
        """Whether this is PairBalance as published: greedy, without damping."""
        return self.code == GREEDY and self.damping == 1.0

    def draw(self, count: int) -> NDArray[np.float64]:
        """Count the next `count` vectors and draw their uniform numbers: (count,) float64; zeros if greedy."""
        first, self.index = self.index, self.index + count
        return np.zeros(count) if self.code == GREEDY else uniforms(self.seed, self.epoch, first, count)

    def begin_epoch(self, carry_over: bool = False, epoch: int | None = None) -> None:
        """Start the random numbers of an epoch, the next by default; keep the rule's state only if carried over."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.index = 0
        if not carry_over:
            self.state[0] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "sign_rule": self.kind,
            "damping": self.damping,
            "seed": self.seed,
            "epoch": self.epoch,
            "index": self.index,
            "rule_state": float(self.state[0]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the point at which `state_dict` was called.

        Raises:
            StateError: saved by another rule, damping or seed.
        """
        for name, here in (("sign_rule", self.kind), ("damping", self.damping), ("seed", self.seed)):
            if state.get(name) != here:
                raise StateError(f"the saved balancing state has {name} = {state.get(name)!r}, this run has {here!r}")
        self.epoch, self.index = int(state["epoch"]), int(state["index"])
        self.state[0] = float(state["rule_state"])


def refuse_bad_sum(h: NDArray[Any]) -> None:
    """Raise UsageError if the running sum is not finite, because every vector would be dropped."""
    if not np.isfinite(h).all():
        raise UsageError("running_sum holds non-finite values: every pair would be dropped; start the epoch with zeros")

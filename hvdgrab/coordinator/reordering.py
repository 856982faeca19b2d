"""How often the ranks coordinate: in which epochs pairs are balanced, and in which every rank keeps the order it has."""

from __future__ import annotations

import math

import numpy as np

from hvdgrab.comm.communicator import Communicator
from hvdgrab.config import GraBConfig

FALL = 0.01
"""By this share the bound must fall below the lowest so far to count as falling: less is the noise of its estimate."""
PATIENCE = 2
"""Coordinated epochs in a row without a fall, after which the ranks rest."""
STALE = 1.1
"""Times the lowest bound: above it the order that was kept has gone stale, since the gradients have changed."""


class Reordering:
    """Decides epoch by epoch; the same on all ranks.

    With ``while_falling`` the herding bound, relative to random orders, is watched in every epoch: it is measured without pairs.

    Args:
        config: the settings.
    """

    def __init__(self, config: GraBConfig) -> None:
        self._settings = config.reorder
        self._always = not config.uses_gradients
        self._lowest, self._misses, self._resting = math.inf, 0, False

    def coordinates(self, epoch: int) -> bool:
        """Whether the gradients of this epoch make the order of the next.  Of the epoch after the last one that was judged."""
        if self._always:
            return True
        settings = self._settings
        last = math.inf if settings.last is None else settings.last
        scheduled = settings.first <= epoch <= last and (epoch - settings.first) % settings.every == 0
        return scheduled and not self._resting

    def judge(self, communicator: Communicator, bound: float | None, coordinated: bool) -> None:
        """Look at the bound of the epoch that has ended, which rank 0 alone knows; collective where that decides anything."""
        if self._always or not self._settings.while_falling:
            return
        if communicator.rank == 0 and bound is not None:
            self._watch(bound, coordinated)
        state = np.array(self.saved(), dtype=np.float64)
        communicator.broadcast(state, 0)
        self.restore(state.tolist())

    def _watch(self, bound: float, coordinated: bool) -> None:
        if self._resting:
            self._resting = bound <= STALE * self._lowest
            if not self._resting:
                self._lowest, self._misses = bound, 0
        elif bound < (1 - FALL) * self._lowest:
            self._lowest, self._misses = bound, 0
        elif coordinated:
            self._misses += 1
            self._resting = self._misses >= PATIENCE

    def saved(self) -> list[float]:
        """Three numbers for `restore`."""
        return [self._lowest, float(self._misses), float(self._resting)]

    def restore(self, saved: list[float] | None) -> None:
        """Go on where `saved` was called; None: from the beginning."""
        self._lowest, misses, resting = (math.inf, 0.0, 0.0) if saved is None else saved
        self._misses, self._resting = int(misses), bool(resting)

"""PairBalance on a stream of pair differences, fed in any grouping; it can be saved and restored between calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance import backends
from hvdgrab.balance.arrays import Array, check_rows, is_torch, like, to_numpy
from hvdgrab.balance.sign_rules import SignRule
from hvdgrab.config import BalanceConfig
from hvdgrab.errors import StateError, UsageError

if TYPE_CHECKING:
    import torch

VERSION = 1
UNKNOWN_COUNT = 1000
"""Vectors an epoch that `auto` assumes if the caller gives no number."""


class PairBalancer:
    """The running sum, the sign rule and the backend of one epoch after the other.

    The grouping of vectors into calls does not change the signs of the reference.  The other backends sum in an order that
    depends on the grouping: their signs may differ if <h, d> is within rounding of 0, and never if the products add up without
    rounding.  A random rule's numbers depend on (seed, epoch, number of the vector) alone.

    Args:
        width: values of a vector, at least 0.
        config: backend, sign rule, carry-over, damping, precision.
        seed: of the random sign rules, 0 <= seed < 2^64.
        expected: vectors an epoch, from which `auto` decides whether a compiled backend pays.
        device: device type of the vectors, for the choice of a backend.

    Raises:
        ConfigError: the backend is not installed, or lacks the rule or the device.
        UsageError: a negative width.
    """

    running_sum: Array
    """(width,) float32, or float64 with ``precision: fp64``; NumPy, or a tensor after `move`."""
    choice: str
    """Which backend computes the signs and why, in one sentence."""

    def __init__(
        self,
        width: int,
        config: BalanceConfig | None = None,
        *,
        seed: int = 0,
        expected: int | None = None,
        device: str = "cpu",
    ) -> None:
        if width < 0:
            raise UsageError(f"the width of a balancer must be at least 0, not {width}")
        self.width = width
        self.config = config = BalanceConfig() if config is None else config
        self._dtype: type[Any] = np.float64 if config.precision == "fp64" else np.float32
        self._rule = SignRule(config.sign_rule, config.damping, seed)
        self._device = device
        count = UNKNOWN_COUNT if expected is None else expected
        picked = backends.choose(
            config.backend, device=device, width=width, count=count, rule=self._rule, float64=config.precision == "fp64"
        )
        self.backend, self.choice = picked
        self.running_sum = np.zeros(width, dtype=self._dtype)
        self._room = np.empty(max(1, count), dtype=np.int8)

    def move(self, place: torch.device) -> None:
        """Keep the running sum on ``place`` from now on; vectors on the same device are then not copied."""
        self.running_sum = sys.modules["torch"].from_numpy(to_numpy(self.running_sum, "running_sum")).to(place)

    @property
    def signs(self) -> NDArray[np.int8]:
        """The signs of this epoch so far: (vectors,) int8 of +1 and -1, a copy."""
        signs: NDArray[np.int8] = self._room[: self._rule.index].copy()
        return signs

    def feed(self, differences: Array) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """Decide the signs of the next vectors and add the signed vectors to the running sum.

        Args:
            differences: (m, width) float16, bfloat16, float32 or float64; NumPy or torch, any strides, any device; read only,
                not kept.

        Returns:
            signs (m,) int8 of +1 and -1, and dropped (m,) bool.  A vector is dropped if it is not finite, if its inner product
            with the running sum is not, or, with a random rule or damping, if its squared norm is not.  Its sign is +1, and it is
            not added to the running sum.

        Raises:
            UsageError: wrong kind, shape or dtype, memory shared with the running sum, or a running sum that is no longer finite.
        """
        check_rows(differences, self.running_sum)
        start = self._rule.index
        signs, dropped = backends.run(self.backend, differences, self.running_sum, self._rule)
        if is_torch(signs):
            signs, dropped = to_numpy(signs, "signs"), to_numpy(dropped, "dropped")
        self._keep(start, signs)
        return signs, dropped

    def begin_epoch(self, epoch: int | None = None) -> None:
        """Start the next epoch: forget the signs, and set running sum and sign-rule state to zero, or keep them with
        ``carry_over``.

        Args:
            epoch: its number, which seeds a random rule; by default one more than the last.
        """
        self._rule.begin_epoch(self.config.carry_over, epoch)
        if not self.config.carry_over:
            self.running_sum[...] = 0

    def warm_up(self) -> None:
        """Import and compile, or load from disk, what `feed` will run; idempotent, and may run in another thread."""
        backends.warm_up(self.backend, self._dtype, self._rule, self.width, self._device)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume in the middle of an epoch: plain numbers and NumPy arrays that share no memory with this
        object.

        The backend is not part of it: another one may resume.
        """
        return {
            "version": VERSION,
            "width": self.width,
            "precision": self.config.precision,
            "carry_over": self.config.carry_over,
            **self._rule.state_dict(),
            "running_sum": to_numpy(self.running_sum, "running_sum").copy(),
            "signs": self.signs,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at the point at which `state_dict` was called; `state` is copied.

        Raises:
            StateError: another version, width, precision, carry-over, sign rule, damping or seed; the message gives both values,
                and nothing has changed.
        """
        own = {"version": VERSION, "width": self.width, "precision": self.config.precision, "carry_over": self.config.carry_over}
        for name, here in own.items():
            if state.get(name) != here:
                raise StateError(f"the saved balancing state has {name} = {state.get(name)!r}, this run has {here!r}")
        running_sum = to_numpy(state["running_sum"], "running_sum")
        signs = to_numpy(state["signs"], "signs")
        if running_sum.shape != (self.width,) or signs.shape != (int(state["index"]),):
            raise StateError(
                f"the saved balancing state is damaged: {running_sum.shape} values of a running sum and {signs.shape} signs "
                f"where the state says ({self.width},) and ({state['index']},)"
            )
        self._rule.load_state_dict(state)
        self.running_sum[...] = like(running_sum.astype(self._dtype), self.running_sum)
        self._keep(0, signs.astype(np.int8, copy=False))

    def _keep(self, start: int, signs: NDArray[np.int8]) -> None:
        end = start + len(signs)
        if end > len(self._room):
            self._room = np.concatenate([self._room[:start], np.empty(max(end, 2 * len(self._room)) - start, dtype=np.int8)])
        self._room[start:end] = signs

"""The saved state of a run's ordering: what `state_dict` holds and `load_state_dict` checks."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance.base import to_arrays, to_tensors
from hvdgrab.comm.communicator import Communicator, broadcast_bytes
from hvdgrab.coordinator.book import OrderBook, Orders
from hvdgrab.errors import StateError

VERSION = 3
_ADDED = {2: {"reordering": None}}
"""Older versions that can be read, with the values of what they lack."""


@dataclass(frozen=True)
class SavedState:
    """Where a run stood, and what its balancing had come to.

    It holds all ranks' orders, so that rank 0's state alone can continue a job.  Then only the other ranks' gradients of
    incomplete pairs are missing, and those pairs count as not seen.
    """

    rank: int
    size: int
    n: int
    order: str
    seed: int
    epoch: int
    position: int
    orders: Orders
    """(W, n) int64."""
    signs: NDArray[np.int8]
    """(W, n // 2) int8: what the saving rank knew."""
    balance: dict[str, Any] | None
    """`PairBalancer.state_dict` on a rank that balances: the running sum and what belongs to it."""
    unsent: torch.Tensor | None
    """(k, width) float32: see `PairBuffer.unsent`."""
    rule: dict[str, Any] | None
    """`Rule.state_dict` of a rule that orders one rank alone."""
    reordering: list[float] | None
    """`Reordering.saved`: whether the bound still falls."""
    facts: dict[str, Any]
    """What must be equal in the run that continues: examples, units, dealing, parameters."""

    @classmethod
    def of(cls, book: OrderBook, facts: Mapping[str, Any]) -> SavedState:
        """The state of a run that stands where ``book`` says, without anything balanced."""
        return cls(
            rank=book.rank,
            size=book.size,
            n=book.n,
            order=book.config.order,
            seed=book.config.seed,
            epoch=book.epoch,
            position=book.position,
            orders=np.array(book.orders),
            signs=np.zeros((book.size, book.n // 2), dtype=np.int8),
            balance=None,
            unsent=None,
            rule=None,
            reordering=None,
            facts=dict(facts),
        )

    def check(self, book: OrderBook, facts: Mapping[str, Any]) -> None:
        """Refuse a state that is not this run's.

        Raises:
            StateError: tells what is different, and both values.
        """
        pairs = [
            ("order", self.order, book.config.order, "keep the order, or start without the saved one"),
            ("seed", self.seed, book.config.seed, "pass the saved seed"),
            ("number of ranks", self.size, book.size, "start as many ranks as before"),
            ("units per rank", self.n, book.n, "use the same dataset and batch_size"),
        ]
        names = {
            "examples": "number of examples",
            "dealing": "dealing of examples to units",
            "parameters": "trainable parameters (digest of names, shapes and order)",
        }
        pairs += [
            (names[key], self.facts.get(key), facts[key], "continue with the same dataset and model")
            for key in names
            if key in facts and key in self.facts  # a sampler that had no optimizer knows no parameters
        ]
        if self.position and "ordering" in facts and "ordering" in self.facts:  # an epoch that has not begun holds no sums
            advice = "keep these settings until the epoch is over"
            pairs.append(("way to balance and compress", self.facts["ordering"], facts["ordering"], advice))
        for what, saved, current, advice in pairs:
            if saved != current:
                raise StateError(
                    f"the saved state does not fit this run: its {what} is {saved!r}, here it is {current!r}; {advice}"
                )

    def carried_over(self, facts: Mapping[str, Any]) -> SavedState:
        """This state for a run whose model may have other trainable parameters now: then its orders alone.

        Only for the beginning of an epoch, when nothing but the orders (and, of mean balance, the stale mean) is known.
        """
        if self.facts.get("parameters") == facts.get("parameters"):
            return self
        return replace(self, facts=dict(facts), rule=None, balance=None)

    def reordered(self, facts: Mapping[str, Any]) -> SavedState:
        """This state for a run that balances or compresses in another way: at the beginning of an epoch its orders alone."""
        known, here = self.facts.get("ordering"), facts.get("ordering")
        if self.position or known is None or known == here or (self.rule is None and self.balance is None):
            return self
        print(
            f"hvdgrab: rank {self.rank}: the saved state balanced with {known}, this run with {here}: the orders go on, sums and "
            "means start anew",
            file=sys.stderr,
        )
        return replace(self, rule=None, balance=None)

    def without_own_pairs(self) -> SavedState:
        """This state without finished pairs that waited for their message: other ranks' are lost, so none can be balanced."""
        half = self.position % 2
        return replace(self, unsent=None if self.unsent is None or not half else self.unsent[-half:])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and tensors: ``torch.load(weights_only=True)`` reads it."""
        plain = {
            name: getattr(self, name)
            for name in ("rank", "size", "n", "order", "seed", "epoch", "position", "rule", "reordering", "facts", "unsent")
        }
        arrays = {name: torch.from_numpy(getattr(self, name).copy()) for name in ("orders", "signs")}
        return {"version": VERSION, **plain, **arrays, "balance": to_tensors(self.balance)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> SavedState:
        """The state in a dictionary made by `to_dict`.

        Raises:
            StateError: it is not one, or of a version that this release cannot read.
        """
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError("this is not a state of GraBSampler or GraBOptimizer: it has no version")
        if state["version"] not in (VERSION, *_ADDED):
            readable = " or ".join(map(str, (*_ADDED, VERSION)))
            raise StateError(f"the saved state has version {state['version']}, this release reads version {readable}")
        state = {**_ADDED.get(state["version"], {}), **state}
        names = cls.__dataclass_fields__
        missing = sorted(set(names) - set(state))
        if missing:
            raise StateError(f"the saved state is incomplete: {', '.join(missing)} missing")
        arrays = {name: torch.as_tensor(state[name]).cpu().numpy().copy() for name in ("orders", "signs")}
        rest = {name: state[name] for name in names if name not in (*arrays, "balance")}
        return cls(**rest, **arrays, balance=to_arrays(state["balance"]))


def fetch_state(communicator: Communicator, saved: SavedState | None, root: int) -> SavedState:
    """Give every rank the state that ``root`` has loaded; collective."""
    data = None
    if communicator.rank == root and saved is not None:
        file = io.BytesIO()
        torch.save(saved.to_dict(), file)
        data = file.getvalue()
    received = broadcast_bytes(communicator, data, root)
    return SavedState.from_dict(torch.load(io.BytesIO(received), weights_only=True))

"""Stored real gradients of the examples, on which orders and compressors are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance import seeded_order
from hvdgrab.bench.one_process import Recipe, recipe
from hvdgrab.training.units import Units, form_units

COLUMNS = 2**13
"""Coordinates over which inner products are summed at a time."""
RANDOM_ORDERS = 16
"""Number of random orders with which a bound is compared."""

Orders = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of all units of W ranks at the same weights."""

    example: str
    values: NDArray[np.float32]
    """(W, n, d) float32, in a file."""
    gram: NDArray[np.float64] = field(repr=False)
    """(W·n, W·n) float64: inner products of the gradients less their mean, rank by rank."""

    @property
    def d(self) -> int:
        """Number of values of a gradient."""
        return int(self.values.shape[2])

    def difference(self, orders: Orders, rank: int, pair: int) -> torch.Tensor:
        """The difference of one pair of one rank, first minus second: (d,) float32."""
        first, second = orders[rank, 2 * pair], orders[rank, 2 * pair + 1]
        return torch.from_numpy(self.values[rank, first] - self.values[rank, second])

    def start(self, seed: int = 0) -> Orders:
        """Random orders (W, n), like those of a first epoch."""
        ranks, n, _ = self.values.shape
        return np.stack([seeded_order("rr", n=n, epoch=0, seed=seed, rank=rank, size=ranks) for rank in range(ranks)])

    def bound(self, orders: Orders) -> float:
        """The ℓ2 parallel herding bound (`hvdgrab.balance.herding_bound`), from the inner products alone."""
        ranks, n = orders.shape
        rows = orders + n * np.arange(ranks)[:, None]
        joint = self.gram[rows[:, None, :, None], rows[None, :, None, :]].sum(axis=(0, 1))  # (n, n): sums over ranks
        prefix = np.cumsum(np.cumsum(joint, axis=0), axis=1).diagonal()
        return float(np.sqrt(max(0.0, prefix.max(initial=0.0))))

    def random_bound(self) -> float:
        """The mean bound of random orders."""
        ranks, n, _ = self.values.shape
        rng, plain = np.random.default_rng(0), np.tile(np.arange(n), (ranks, 1))
        return float(np.mean([self.bound(rng.permuted(plain, axis=1)) for _ in range(RANDOM_ORDERS)]))


@contextmanager
def collect(example: str, ranks: int, units: int, *, seed: int = 0) -> Iterator[Gradients]:
    """Train an example for one pass over ``ranks``·``units`` units, then store each unit's gradient at the weights reached.

    Units hold as many examples as in the example itself, or fewer if the data does not suffice.

    Args:
        example: one of `hvdgrab.bench.runs.EXAMPLES`.
        ranks: W, simulated in this process.
        units: n of each rank.
        seed: of the model and of the units.
    """
    made = recipe(example)
    examples = len(made.data)
    batch_size = max(1, min(made.batch_size, examples // (ranks * units)))
    dealt = form_units(min(examples, ranks * units * batch_size), ranks, batch_size, seed)
    torch.manual_seed(seed)
    source = _Source(made, dealt)
    with one_thread(), tempfile.TemporaryDirectory(prefix="hvdgrab-bench-") as folder:
        source.train()
        shape = (ranks, dealt.n, source.d)
        values = np.memmap(Path(folder) / "gradients", dtype=np.float32, mode="w+", shape=shape)
        for rank in range(ranks):
            for unit in range(dealt.n):
                values[rank, unit] = source.gradient(rank, unit)
        yield Gradients(example, values, centred_gram(values.reshape(-1, source.d)))
        del values


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: as on a rank that shares its machine, and fastest for small models."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Source:
    """Trains a model and computes the gradients of its units."""

    def __init__(self, made: Recipe, units: Units) -> None:
        self._made, self._units = made, units
        self._model = made.model()
        self._parameters = list(self._model.parameters())
        self.d = sum(parameter.numel() for parameter in self._parameters)

    def train(self) -> None:
        moving = [torch.zeros_like(parameter) for parameter in self._parameters]
        for unit in range(self._units.n):
            parts = [self._parts(rank, unit) for rank in range(self._units.size)]
            with torch.no_grad():
                for parameter, direction, *pieces in zip(self._parameters, moving, *parts, strict=True):
                    direction.mul_(self._made.momentum).add_(torch.stack(pieces).mean(0))
                    parameter.sub_(direction, alpha=self._made.lr)

    def gradient(self, rank: int, unit: int) -> NDArray[np.float32]:
        flat: NDArray[np.float32] = torch.cat([part.reshape(-1) for part in self._parts(rank, unit)]).numpy()
        return flat

    def _parts(self, rank: int, unit: int) -> tuple[torch.Tensor, ...]:
        members = torch.from_numpy(self._units.members(rank, unit))
        loss = self._made.loss(self._model, *(tensor[members] for tensor in self._made.data.tensors))
        return torch.autograd.grad(loss, self._parameters)


def centred_gram(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Inner products of the rows of (m, d) less their mean: (m, m) float64; reads some columns at a time."""
    total = np.zeros((len(vectors), len(vectors)))
    for start in range(0, vectors.shape[1], COLUMNS):
        part = vectors[:, start : start + COLUMNS].astype(np.float64)
        part -= part.mean(axis=0)
        total += (part.astype(np.float32) @ part.astype(np.float32).T).astype(np.float64)
    return total

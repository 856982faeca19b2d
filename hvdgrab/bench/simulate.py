"""``hvdgrab-bench simulate``: W simulated ranks train a logistic regression on scikit-learn's digits, without MPI.

One process holds every unit's gradient: in a minute, this shows whether an ordering rule works before anything is distributed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from hvdgrab.balance import herding_bound, next_order, pair_balance, seeded_order
from hvdgrab.training.units import Units, form_units

Matrix = NDArray[np.float64]
CLASSES = 10
RANDOM_ORDERS = 4
"""Number of random orders with which a bound is compared."""


@dataclass
class Study:
    """One training: an order and a seed."""

    order: str
    seed: int
    epoch_loss: list[float] = field(default_factory=list)
    """Mean loss of the units before their steps, as training scripts log it."""
    full_loss: list[float] = field(default_factory=list)
    """Loss of all examples at the end of each epoch."""
    bound_vs_random: list[float] = field(default_factory=list)
    """ℓ2 parallel herding bound of the epoch's orders, over the mean of random orders of the same gradients."""


def simulate(order: str, seed: int, *, ranks: int = 4, epochs: int = 30, lr: float = 0.1) -> Study:
    """Train once, with one example a unit, the mean of the ranks' gradients at every step, and plain SGD.

    Weights start at zero, so that the seed decides only the data order.
    """
    inputs, targets = load()
    study, weights = Study(order, seed), np.zeros((CLASSES, inputs.shape[1]))
    units = form_units(len(inputs), ranks, 1, seed)
    orders = np.stack([seeded_order(order, n=units.n, epoch=0, seed=seed, rank=rank, size=ranks) for rank in range(ranks)])
    for epoch in range(epochs):
        if order == "reshuffle":
            units = form_units(len(inputs), ranks, 1, seed, epoch=epoch)
        gradients, loss = _epoch(inputs, targets, weights, units, orders, lr)
        study.epoch_loss.append(loss)
        study.full_loss.append(_loss(inputs, targets, weights))
        study.bound_vs_random.append(_bound(gradients, orders, seed, epoch))
        orders = _following(order, orders, gradients, epoch=epoch + 1, seed=seed)
    return study


def load() -> tuple[Matrix, NDArray[np.int64]]:
    """Load the digits as (1797, 65) float64 in 0 … 1, the last column 1 for the bias, and their labels (1797,) int64."""
    digits = load_digits()
    inputs = np.hstack([digits.data / 16, np.ones((len(digits.data), 1))])
    return inputs, digits.target.astype(np.int64)


def _epoch(
    inputs: Matrix, targets: NDArray[np.int64], weights: Matrix, units: Units, orders: NDArray[np.int64], lr: float
) -> tuple[NDArray[np.float32], float]:
    """Train one epoch in place; return the units' gradients (W, n, d) float32 and their mean loss."""
    ranks, n = orders.shape
    gradients, total = np.empty((ranks, n, weights.size), dtype=np.float32), 0.0
    for position in range(n):
        step = np.zeros_like(weights)
        for rank in range(ranks):
            unit = orders[rank, position]
            members = units.members(rank, unit)
            gradient, loss = _gradient(inputs[members], targets[members], weights)
            gradients[rank, unit] = gradient.ravel()
            step += gradient
            total += loss
        weights -= lr / ranks * step
    return gradients, total / (ranks * n)


def _gradient(inputs: Matrix, targets: NDArray[np.int64], weights: Matrix) -> tuple[Matrix, float]:
    """The mean cross entropy's gradient and value."""
    probabilities = _softmax(inputs @ weights.T)
    picked = probabilities[np.arange(len(targets)), targets].copy()
    probabilities[np.arange(len(targets)), targets] -= 1
    return probabilities.T @ inputs / len(targets), float(-np.log(picked).mean())


def _loss(inputs: Matrix, targets: NDArray[np.int64], weights: Matrix) -> float:
    probabilities = _softmax(inputs @ weights.T)
    return float(-np.log(probabilities[np.arange(len(targets)), targets]).mean())


def _softmax(logits: Matrix) -> Matrix:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Matrix = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


def _following(order: str, orders: NDArray[np.int64], gradients: NDArray[np.float32], *, epoch: int, seed: int) -> Any:
    """Compute the next epoch's orders (W, n)."""
    ranks, n = orders.shape
    if order not in ("cd-grab", "id-grab"):
        return np.stack([seeded_order(order, n=n, epoch=epoch, seed=seed, rank=rank, size=ranks) for rank in range(ranks)])
    seen = np.take_along_axis(gradients, orders[:, :, None], axis=1)
    differences = seen[:, 0 : n - 1 : 2] - seen[:, 1::2]  # (W, n // 2, d)
    signs = _coordinated(differences) if order == "cd-grab" else np.stack([_balanced(rows) for rows in differences])
    return np.stack([next_order(row, bits) for row, bits in zip(orders, signs, strict=True)])


def _coordinated(differences: NDArray[np.float32]) -> NDArray[np.int8]:
    """Signs (W, n // 2) by one running sum for all ranks, ordered by pair, then by rank."""
    ranks, pairs, d = differences.shape
    signs = _balanced(differences.transpose(1, 0, 2).reshape(pairs * ranks, d))
    return np.ascontiguousarray(signs.reshape(pairs, ranks).T)


def _balanced(rows: NDArray[np.float32]) -> NDArray[np.int8]:
    signs: NDArray[np.int8] = pair_balance(rows, np.zeros(rows.shape[1], dtype=np.float32))
    return signs


def _bound(gradients: NDArray[np.float32], orders: NDArray[np.int64], seed: int, epoch: int) -> float:
    rng = np.random.default_rng([seed, epoch])
    ranks, n = orders.shape
    random = [herding_bound(gradients, rng.permuted(np.tile(np.arange(n), (ranks, 1)), axis=1))[0] for _ in range(RANDOM_ORDERS)]
    return herding_bound(gradients, orders)[0] / float(np.mean(random))

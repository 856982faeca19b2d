"""The parallel herding bound of orders over stored gradients (CD-GraB, arXiv 2302.00845, equation 2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, is_torch, to_numpy
from hvdgrab.balance.orders import is_permutation
from hvdgrab.errors import UsageError

CHUNK = 2**16
"""Float64 elements of working memory, beyond a handful of (d,) vectors."""


def herding_bound(gradients: Array, orders: Array) -> tuple[float, float]:
    """How far the ranks' joint prefix sums stray from the mean: max over k of ‖Σ_{j≤k} Σ_w (g_{w, π_w(j)} - mean)‖.

    The mean is over all W·n vectors.  Sums are formed in float64 and streamed: working memory is O(d), whatever W and n.

    Args:
        gradients: (W, n, d) real numbers, entry [w, u] the gradient of unit u of rank w; NumPy or torch, any device.
        orders: (W, n) integers, row w a permutation of 0 … n - 1; NumPy or torch.

    Returns:
        The bound in the ℓ2 and in the ℓ∞ norm; NaN for both where a gradient is not finite.

    Raises:
        UsageError: wrong kind or shape, or a row of `orders` that is no permutation.
    """
    places = _check(gradients, orders)
    ranks, n = places.shape
    d = int(gradients.shape[2])
    step = max(1, CHUNK // max(1, d))
    spans = [slice(start, min(n, start + step)) for start in range(0, n, step)]
    units = np.tile(np.arange(n), (ranks, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        total = sum((_joint(gradients, units, span).sum(axis=0) for span in spans), np.zeros(d))
        drift = total / max(1, n)
        return _largest_prefix(gradients, places, spans, drift)


def _largest_prefix(
    gradients: Array, places: NDArray[np.int64], spans: list[slice], drift: NDArray[np.float64]
) -> tuple[float, float]:
    """The largest norms of the prefix sums; `drift` is W times the mean."""
    prefix = np.zeros_like(drift)
    l2 = linf = 0.0
    for span in spans:
        sums = _joint(gradients, places, span)
        sums -= drift
        sums[0] += prefix
        np.cumsum(sums, axis=0, out=sums)
        prefix = sums[-1].copy()
        l2 = np.maximum(l2, np.sqrt(np.einsum("kd,kd->k", sums, sums)).max())
        linf = np.maximum(linf, np.abs(sums).max(initial=0.0))
    if not (np.isfinite(l2) and np.isfinite(linf)):
        return float("nan"), float("nan")
    return float(l2), float(linf)


def _joint(gradients: Array, places: NDArray[np.int64], span: slice) -> NDArray[np.float64]:
    """The sums over ranks at the positions of `span`: (len, d) float64."""
    joint = np.zeros((span.stop - span.start, int(gradients.shape[2])))
    for w in range(len(places)):
        joint += to_numpy(gradients[w][places[w, span]], "gradients")
    return joint


def _check(gradients: Array, orders: Array) -> NDArray[np.int64]:
    if not isinstance(gradients, np.ndarray) and not is_torch(gradients):
        raise UsageError(f"gradients must be a NumPy array or a torch tensor, not {type(gradients).__name__}")
    places = to_numpy(orders, "orders")
    if gradients.ndim != 3 or tuple(gradients.shape[:2]) != places.shape:
        raise UsageError(f"gradients must be (W, n, d) and orders (W, n), not {tuple(gradients.shape)} and {places.shape}")
    if places.dtype.kind not in "iu":
        raise UsageError(f"orders must be integers, not {places.dtype}")
    for w, row in enumerate(places):
        if not is_permutation(row):
            raise UsageError(f"the order of rank {w} is no permutation of 0 … {len(row) - 1}")
    return places.astype(np.int64, copy=False)

"""Orders: permutations of a rank's units, made from sign bits (`next_order`) or from a seed alone (`seeded_order`).

An order is an int64 array of shape (n,): entry j is the unit seen at position j of the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, like, to_numpy
from hvdgrab.balance.streams import Purpose, generator
from hvdgrab.config import GRADIENT_ORDERS
from hvdgrab.errors import ConfigError, UsageError

Order = NDArray[np.int64]


def next_order(order: Array, signs: Array) -> Any:
    """Compute the next epoch's order from the current order and the sign bits (CD-GraB, arXiv 2302.00845, algorithm 2).

    Pair k holds the units at positions 2k and 2k + 1.  Sign +1: the first goes to slot k, the second to slot n - 1 - k;
    sign -1: the other way round.  Sign 0, or no sign because the epoch ended early, marks a pair that was not balanced: its
    units, and the last unit of an odd n, fill the free slots in their current order::

        order  = [4, 2, 0, 1, 3]
        signs  = [+1, -1]
        result = [4, 1, 3, 0, 2]

    Args:
        order: (n,) integers, a permutation of 0 … n - 1; NumPy or torch.
        signs: (m,) integers in {-1, 0, +1} with m <= n // 2; NumPy or torch.

    Returns:
        (n,) int64, of the same kind (and device) as `order`; neither argument is changed or kept.

    Raises:
        UsageError: `order` is no permutation, or `signs` has a wrong shape or wrong values.
    """
    units = _checked_order(to_numpy(order, "order"))
    bits = _checked_signs(to_numpy(signs, "signs"), len(units) // 2)
    n = len(units)
    seen = np.flatnonzero(bits)
    first, second = units[2 * seen], units[2 * seen + 1]
    plus = bits[seen] > 0
    result = np.full(n, -1, dtype=np.int64)
    result[seen] = np.where(plus, first, second)
    result[n - 1 - seen] = np.where(plus, second, first)
    left = np.ones(n, dtype=bool)
    left[2 * seen] = left[2 * seen + 1] = False
    result[result < 0] = units[left]
    return like(result, order)


def is_permutation(order: NDArray[Any]) -> bool:
    """Whether the (n,) integer array holds every number of 0 … n - 1 once."""
    n = len(order)
    if n == 0 or order.min() < 0 or order.max() >= n:
        return n == 0
    return bool(np.bincount(order, minlength=n).max() == 1)


def _checked_order(order: NDArray[Any]) -> Order:
    if order.ndim != 1 or order.dtype.kind not in "iu":
        raise UsageError(f"an order is a one-dimensional array of integers, not {order.dtype} of shape {order.shape}")
    if not is_permutation(order):
        raise UsageError(f"the order is no permutation of 0 … {len(order) - 1}: a unit is missing, repeated or out of range")
    return order.astype(np.int64, copy=False)


def _checked_signs(signs: NDArray[Any], most: int) -> NDArray[np.int8]:
    if signs.ndim != 1 or (signs.dtype.kind not in "iu" and len(signs)):
        raise UsageError(f"signs are a one-dimensional array of integers, not {signs.dtype} of shape {signs.shape}")
    if len(signs) > most:
        raise UsageError(f"{len(signs)} signs for an order that has only {most} pairs")
    if len(signs) and not bool(np.isin(signs, (-1, 0, 1)).all()):
        raise UsageError(f"signs are -1, 0 or +1, not {sorted({int(s) for s in signs} - {-1, 0, 1})}")
    return signs.astype(np.int8, copy=False)


def seeded_order(
    rule: str, *, n: int, epoch: int, seed: int, rank: int, size: int, block_size: int | None = None
) -> Order:
    """Compute the order that a rule without gradients gives one rank in one epoch; every rank can compute every other's.

    ==================  ==============================================================================================
    ``rr``              random reshuffling (D-RR): a new permutation for every epoch and rank
    ``reshuffle``       the same permutations; examples are dealt to units anew every epoch (`hvdgrab.training.units`)
    ``shuffle-once``    ``rr``'s permutation of epoch 0 for ever
    ``fixed``           0, 1, …, n - 1
    ``flipflop``        even epochs as ``rr``, odd epochs the previous one reversed (Rajput et al., arXiv 2102.09718)
    ``block-reversal``  contiguous blocks of the ``shuffle-once`` order, reshuffled as blocks in even epochs; odd epochs
                        are the previous one reversed (Nguyen et al., arXiv 2604.00260: block reshuffling and paired reversal)
    ``sync-shuffle``    one permutation σ for all ranks and one permutation π of the ranks, new every epoch; rank m sees
                        σ((i + π(m)·n/W) mod n) at position i (Yun, Rajput and Sra, arXiv 2110.10342)
    ``grab`` ``id-grab``  only epoch 0, which equals ``rr``'s: runs of one seed share their first epoch, and later orders
    ``cd-grab``         are made from gradients
    ==================  ==============================================================================================

    Args:
        rule: the name of the rule.
        n: units of each rank, at least 1.
        epoch: from 0.
        seed: 0 <= seed < 2^64.
        rank: 0 … size - 1.
        size: number of ranks (W).
        block_size: units in a block of ``block-reversal``; by default the square root of n, rounded up.

    Returns:
        (n,) int64, a new array.

    Raises:
        ConfigError: unknown rule or a block size below 1.
        UsageError: a number out of its range, or an epoch after the first of a rule that looks at gradients.
    """
    if rule not in _RULES:
        raise ConfigError(f"unknown order {rule!r}; valid are {', '.join(sorted(_RULES))}")
    if n < 1 or not 0 <= rank < size:
        raise UsageError(f"an order needs n >= 1 units and 0 <= rank < size, not n = {n}, rank = {rank}, size = {size}")
    if block_size is not None and block_size < 1:
        raise ConfigError(f"block_size must be at least 1, not {block_size}")
    if rule == "block-reversal":
        return _block_reversal(n, epoch, seed, rank, block_size or max(1, int(np.ceil(np.sqrt(n)))))
    return _RULES[rule](n, epoch, seed, rank, size)


def _rr(n: int, epoch: int, seed: int, rank: int, size: int = 1) -> Order:
    del size
    return generator(seed, Purpose.RR, epoch, rank).permutation(n).astype(np.int64, copy=False)


def _shuffle_once(n: int, epoch: int, seed: int, rank: int, size: int) -> Order:
    del epoch, size
    return _rr(n, 0, seed, rank)


def _fixed(n: int, epoch: int, seed: int, rank: int, size: int) -> Order:
    del epoch, seed, rank, size
    return np.arange(n, dtype=np.int64)


def _flipflop(n: int, epoch: int, seed: int, rank: int, size: int) -> Order:
    del size
    return _reversed_if_odd(_rr(n, epoch - epoch % 2, seed, rank), epoch)


def _block_reversal(n: int, epoch: int, seed: int, rank: int, block_size: int) -> Order:
    base = _rr(n, 0, seed, rank)
    blocks = [base[start : start + block_size] for start in range(0, n, block_size)]
    shuffled = generator(seed, Purpose.BLOCKS, epoch - epoch % 2, rank).permutation(len(blocks))
    return _reversed_if_odd(np.concatenate([blocks[b] for b in shuffled]), epoch)


def _default_blocks(n: int, epoch: int, seed: int, rank: int, size: int) -> Order:
    del size
    return _block_reversal(n, epoch, seed, rank, int(np.ceil(np.sqrt(n))))


def _sync_shuffle(n: int, epoch: int, seed: int, rank: int, size: int) -> Order:
    shared = generator(seed, Purpose.SYNC_UNITS, epoch).permutation(n)
    turn = int(generator(seed, Purpose.SYNC_RANKS, epoch).permutation(size)[rank])
    return np.roll(shared, -(turn * n // size)).astype(np.int64, copy=False)


def _first_epoch(n: int, epoch: int, seed: int, rank: int, size: int) -> Order:
    if epoch != 0:
        rules = ", ".join(GRADIENT_ORDERS)
        raise UsageError(f"the order of epoch {epoch} is made from gradients ({rules}); only epoch 0's comes from a seed")
    return _rr(n, 0, seed, rank, size)


def _reversed_if_odd(order: Order, epoch: int) -> Order:
    return order[::-1].copy() if epoch % 2 else order


_RULES: dict[str, Callable[[int, int, int, int, int], Order]] = {
    "rr": _rr,
    "reshuffle": _rr,
    "shuffle-once": _shuffle_once,
    "fixed": _fixed,
    "flipflop": _flipflop,
    "block-reversal": _default_blocks,
    "sync-shuffle": _sync_shuffle,
    **dict.fromkeys(GRADIENT_ORDERS, _first_epoch),
}

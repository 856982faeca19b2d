"""PairBalance: a sign for every pair difference (CD-GraB: Cooper et al., NeurIPS 2023, arXiv 2302.00845, algorithm 1)."""

from __future__ import annotations

from typing import Any

from hvdgrab.balance.arrays import Array, check_input, device_of
from hvdgrab.balance.backends import choose, run
from hvdgrab.balance.sign_rules import SignRule

_GREEDY = SignRule()


def pair_balance(differences: Array, running_sum: Array, backend: str = "auto") -> Any:
    """Decide the sign of every pair difference, in the order given, and add the signed differences to the running sum.

    For each row d: s = +1 if <h, d> <= 0 else -1, then h = h + s·d.  h is zero at the start of an epoch, so that the first
    sign is +1.  Rows of several ranks are ordered by pair first, then by rank.  A worked example::

        h = [0, 0];  d = [1, 0]: <h, d> =  0 -> +1, h = [ 1, 0]
                     d = [2, 1]: <h, d> =  2 -> -1, h = [-1, -1]
                     d = [1, 1]: <h, d> = -2 -> +1, h = [ 0, 0]

    A row with a non-finite value gets +1 and does not change h; so does a finite row whose inner product with h overflows
    float32. `balance_pairs` also returns which rows these are.

    Args:
        differences: (m, d) float32; float16, bfloat16 and float64 are converted a block at a time.  NumPy or torch, any strides.
        running_sum: (d,) float32, updated in place; of the same kind and on the same device as `differences`.
        backend: what computes the signs, which are the same unless <h, d> is within rounding of 0.

            "reference"  the literal loop; inner products by `numpy.dot` in float32; tensors on other devices are copied to the
                         host a block at a time, as with "numba"
            "numba"      compiled loop on the host, four vectors a pass
            "torch"      block Gram form on the tensors' device
            "triton"     one kernel on a CUDA device
            "auto"       one of these, chosen by device, width and number of vectors (`hvdgrab.balance.backends.choose`)

    Returns:
        (m,) int8 of +1 and -1, of the same kind and on the same device as `differences`.

    Raises:
        ConfigError: unknown backend, or one that cannot run here.
        UsageError: wrong kind, shape, dtype or device, shared memory, or a running sum that is not finite.
    """
    return balance_pairs(differences, running_sum, backend)[0]


def balance_pairs(differences: Array, running_sum: Array, backend: str = "auto") -> tuple[Any, Any]:
    """Balance as `pair_balance` does, and also return which pairs were dropped.

    Returns:
        signs (m,) int8 of +1 and -1, and dropped (m,) bool: rows whose inner product with the running sum is not finite
        (a NaN or an infinity in the row, or overflow).  Their sign is +1, and they are not added to the running sum.

    Raises:
        ConfigError, UsageError: as `pair_balance`.
    """
    check_input(differences, running_sum)
    m, d = differences.shape
    choice = choose(backend, device=device_of(differences), width=d, count=m, rule=_GREEDY)
    return run(choice.name, differences, running_sum, SignRule())

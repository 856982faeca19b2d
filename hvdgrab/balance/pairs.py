"""PairBalance: a sign for every pair difference (CD-GraB: Cooper et al., NeurIPS 2023, arXiv 2302.00845, algorithm 1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvdgrab.balance.arrays import Array, is_torch, to_numpy
from hvdgrab.balance.backends import choose, device_of, run
from hvdgrab.balance.sign_rules import SignRule
from hvdgrab.errors import UsageError

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
    _check(differences, running_sum)
    m, d = differences.shape
    choice = choose(backend, device=device_of(differences), width=d, count=m, rule=_GREEDY)
    return run(choice.name, differences, running_sum, SignRule())


def check_rows(differences: Array, running_sum: Array) -> None:
    """Raise UsageError unless `differences` is a (m, d) floating-point array or tensor apart from the (d,) running sum."""
    _check_kind("differences", differences)
    if differences.ndim != 2 or running_sum.ndim != 1 or differences.shape[1] != running_sum.shape[0]:
        raise UsageError(
            "differences must be (m, d) and running_sum (d,), "
            f"not {tuple(differences.shape)} and {tuple(running_sum.shape)}"
        )
    given = _dtype(differences)
    if given not in ("float16", "bfloat16", "float32", "float64"):
        raise UsageError(f"differences must be float32 (or float16, bfloat16, float64), not {given}")
    if device_of(differences) == device_of(running_sum) == "cpu":
        _check_overlap(differences, running_sum)


def _check(differences: Array, running_sum: Array) -> None:
    _check_kind("differences", differences)
    _check_kind("running_sum", running_sum)
    if is_torch(differences) != is_torch(running_sum):
        raise UsageError("differences and running_sum must both be NumPy arrays or both torch tensors")
    check_rows(differences, running_sum)
    if _dtype(running_sum) != "float32":
        raise UsageError(f"running_sum must be float32, because it is updated in place; it is {_dtype(running_sum)}")
    if isinstance(running_sum, np.ndarray):
        if not running_sum.flags.writeable:
            raise UsageError("running_sum is read-only, but it is updated in place")
    elif differences.device != running_sum.device:
        raise UsageError(f"differences are on {differences.device}, running_sum on {running_sum.device}: move one of them")


def _check_kind(name: str, value: object) -> None:
    if not isinstance(value, np.ndarray) and not is_torch(value):
        raise UsageError(f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}")


def _dtype(array: Array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _check_overlap(differences: Array, running_sum: Array) -> None:
    kept = to_numpy(running_sum, "running_sum")
    ends = {0, len(differences) - 1} if len(differences) else set()
    if any(np.may_share_memory(to_numpy(differences[i], "differences"), kept) for i in ends):
        raise UsageError("running_sum shares memory with differences: updating it would change rows still to come; copy it")

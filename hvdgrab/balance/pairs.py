"""PairBalance: one sign for every pair difference (CD-GraB: Cooper et al., NeurIPS 2023, arXiv 2302.00845, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, is_torch, like, to_numpy
from hvdgrab.errors import ConfigError, UsageError

Rows = Iterator[NDArray[np.float32]]
Decision = tuple[NDArray[np.int8], NDArray[np.bool_]]


def pair_balance(differences: Array, running_sum: Array, backend: str = "auto") -> Any:
    """Decide the sign of every pair difference, in the order given, and add the signed differences to the running sum.

    For each row d: s = +1 if <h, d> <= 0 else -1, then h = h + s·d.  h is zero at the start of an epoch, so that the first
    sign is +1.  Rows of several ranks belong together as pair outermost, rank innermost.  A worked example::

        h = [0, 0];  d = [1, 0]: <h, d> =  0 -> +1, h = [ 1, 0]
                     d = [2, 1]: <h, d> =  2 -> -1, h = [-1, -1]
                     d = [1, 1]: <h, d> = -2 -> +1, h = [ 0, 0]

    A row with a non-finite value gets +1 and leaves h alone (`balance_pairs` says which); so does a finite row whose inner
    product with h overflows float32.

    Args:
        differences: (m, d) float32; float16, bfloat16 and float64 are converted row by row.  NumPy or torch, any strides.
            Tensors of another device than the CPU are brought to the host, a row at a time.
        running_sum: (d,) float32, updated in place; of the same kind, and on the same device, as `differences`.
        backend: "reference" (the literal loop; inner products as `numpy.dot` forms them in float32), or "auto".

    Returns:
        (m,) int8 of +1 and -1, of the same kind and on the same device as `differences`.

    Raises:
        ConfigError: unknown backend.
        UsageError: wrong kind, shape, dtype or device, shared memory, or a running sum that is not finite.
    """
    return balance_pairs(differences, running_sum, backend)[0]


def balance_pairs(differences: Array, running_sum: Array, backend: str = "auto") -> tuple[Any, Any]:
    """As `pair_balance`, and also which pairs were dropped.

    Returns:
        signs (m,) int8 of +1 and -1, and dropped (m,) bool: rows whose inner product with the running sum is not finite
        (a NaN or an infinity in the row, or overflow).  Their sign is +1, and the running sum does not hold them.

    Raises:
        ConfigError, UsageError: as `pair_balance`.
    """
    decide = _backend(backend)
    _check(differences, running_sum)
    host = to_numpy(running_sum, "running_sum")
    h = np.ascontiguousarray(host)
    signs, dropped = decide(_rows(differences), h, len(differences))
    if h is not host:
        host[...] = h
    if not isinstance(running_sum, np.ndarray) and running_sum.device.type != "cpu":
        running_sum.detach().copy_(like(h, running_sum))
    return like(signs, differences), like(dropped, differences)


def _literal(rows: Rows, h: NDArray[np.float32], m: int) -> Decision:
    signs = np.ones(m, dtype=np.int8)
    dropped = np.zeros(m, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for i, row in enumerate(rows):
            product = float(np.dot(h, row))
            # With h finite, one non-finite value in the row makes the product non-finite (0·inf is NaN): no second look needed.
            if not math.isfinite(product):
                _refuse_bad_sum(h)
                dropped[i] = True
            elif product <= 0:
                h += row
            else:
                signs[i] = -1
                h -= row
    return signs, dropped


_BACKENDS: dict[str, Callable[[Rows, NDArray[np.float32], int], Decision]] = {"reference": _literal}


def _backend(name: str) -> Callable[[Rows, NDArray[np.float32], int], Decision]:
    if name == "auto":
        name = "reference"
    if name not in _BACKENDS:
        raise ConfigError(f"unknown balance backend {name!r}; valid are 'auto', {', '.join(map(repr, sorted(_BACKENDS)))}")
    return _BACKENDS[name]


def _rows(differences: Array) -> Rows:
    """The rows as contiguous float32 host vectors, one at a time: a converted copy never holds more than one row."""
    if not isinstance(differences, np.ndarray) and differences.device.type == "cpu" and differences.element_size() > 2:
        differences = to_numpy(differences, "differences")  # A view: nothing is copied.
    with np.errstate(over="ignore"):
        for i in range(len(differences)):
            row = differences[i]
            yield np.ascontiguousarray(row if isinstance(row, np.ndarray) else to_numpy(row, "differences"), dtype=np.float32)


def _refuse_bad_sum(h: NDArray[np.float32]) -> None:
    if not np.isfinite(h).all():
        raise UsageError("running_sum holds non-finite values: every pair would be dropped; start the epoch with zeros")


def _check(differences: Array, running_sum: Array) -> None:
    for name, value in (("differences", differences), ("running_sum", running_sum)):
        if not isinstance(value, np.ndarray) and not is_torch(value):
            raise UsageError(f"{name} must be a NumPy array or a torch tensor, not {type(value).__name__}")
    if is_torch(differences) != is_torch(running_sum):
        raise UsageError("differences and running_sum must both be NumPy arrays or both torch tensors")
    if differences.ndim != 2 or running_sum.ndim != 1 or differences.shape[1] != running_sum.shape[0]:
        raise UsageError(
            "differences must be (m, d) and running_sum (d,), "
            f"not {tuple(differences.shape)} and {tuple(running_sum.shape)}"
        )
    _check_dtypes(differences, running_sum)
    _check_memory(differences, running_sum)


def _check_dtypes(differences: Array, running_sum: Array) -> None:
    given, kept = (str(value.dtype).removeprefix("torch.") for value in (differences, running_sum))
    if given not in ("float16", "bfloat16", "float32", "float64"):
        raise UsageError(f"differences must be float32 (or float16, bfloat16, float64), not {given}")
    if kept != "float32":
        raise UsageError(f"running_sum must be float32, because it is updated in place; it is {kept}")


def _check_memory(differences: Array, running_sum: Array) -> None:
    if isinstance(differences, np.ndarray) and isinstance(running_sum, np.ndarray):
        if not running_sum.flags.writeable:
            raise UsageError("running_sum is read-only, but it is updated in place")
    elif differences.device != running_sum.device:
        raise UsageError(f"differences are on {differences.device}, running_sum on {running_sum.device}: move one of them")
    if isinstance(running_sum, np.ndarray) or running_sum.device.type == "cpu":
        _check_overlap(differences, running_sum)


def _check_overlap(differences: Array, running_sum: Array) -> None:
    if len(differences) and any(
        np.may_share_memory(to_numpy(differences[i], "differences"), to_numpy(running_sum, "running_sum"))
        for i in (0, len(differences) - 1)
    ):
        raise UsageError("running_sum shares memory with differences: updating it would change rows still to come; copy it")

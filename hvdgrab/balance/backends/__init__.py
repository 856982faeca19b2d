"""Backends of PairBalance behind one call: the literal loop, numba, torch, Triton.  Importing this loads none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvdgrab.balance.arrays import Array, is_torch, like, to_numpy
from hvdgrab.balance.backends.choose import BACKENDS, Choice, choose, require
from hvdgrab.balance.sign_rules import SignRule, refuse_bad_sum

if TYPE_CHECKING:
    import torch

__all__ = ["BACKENDS", "Choice", "choose", "require", "run", "warm_up"]


def run(name: str, differences: Array, running_sum: Array, rule: SignRule) -> tuple[Any, Any]:
    """Balance checked input with the backend `name`, one of `BACKENDS`.

    Args:
        name: the backend; its package is installed.
        differences: (m, d) NumPy or torch, any floating type, strides and device.
        running_sum: (d,) float32 or float64, updated in place; NumPy with either, or a tensor with tensors.
        rule: the sign rule, which counts the vectors.

    Returns:
        signs (m,) int8 and dropped (m,) bool, of the kind and on the device of `differences`.

    Raises:
        UsageError: the running sum is not finite.  Triton on tensors drops every row instead, because a check would wait for the
            device.
    """
    if name in ("torch", "triton"):
        return _on_device(name, differences, running_sum, rule)
    from hvdgrab.balance.backends import compiled, literal

    balance = compiled.balance if name == "numba" else literal.balance
    host = to_numpy(running_sum, "running_sum")
    h = np.require(host, requirements=["C", "A"])
    signs, dropped = balance(differences, h, rule)
    if h is not host:
        host[...] = h
    if not isinstance(running_sum, np.ndarray) and running_sum.device.type != "cpu":
        running_sum.detach().copy_(like(h, running_sum))
    return like(signs, differences), like(dropped, differences)


def warm_up(name: str, precision: type[Any], rule: SignRule, width: int, device: str) -> None:
    """Import and compile, or load from disk, what `run` needs for vectors of `width` values; idempotent, thread-safe."""
    if name == "numba":
        from hvdgrab.balance.backends import compiled

        compiled.warm_up(precision, rule)
    elif name == "triton":
        import torch

        from hvdgrab.balance.backends import kernels

        kernels.warm_up(width, torch.float32, device)
    elif name != "reference":
        run(name, np.zeros((1, 1), dtype=precision), np.zeros(1, dtype=precision), SignRule(rule.kind, rule.damping))


def _on_device(name: str, differences: Array, running_sum: Array, rule: SignRule) -> tuple[Any, Any]:
    rows, kept = _as_tensor(differences), _as_tensor(running_sum)
    h = kept.to(rows.device).contiguous()
    if name == "triton":
        from hvdgrab.balance.backends import kernels

        rule.draw(len(rows))
        signs, dropped = kernels.balance(rows, h)
        if isinstance(differences, np.ndarray) and bool(dropped.any()):  # with tensors, this would wait for the device
            refuse_bad_sum(h.cpu().numpy())
    else:
        from hvdgrab.balance.backends import gram

        signs, dropped = gram.balance(rows, h, rule)
    if isinstance(running_sum, np.ndarray):
        running_sum[...] = h.cpu().numpy()
    elif h is not kept:
        kept.copy_(h)
    return (signs, dropped) if is_torch(differences) else (signs.numpy(), dropped.numpy())


def _as_tensor(array: Array) -> torch.Tensor:
    """A tensor that shares the array's memory; torch supports neither negative strides nor read-only memory: these are copied."""
    if not isinstance(array, np.ndarray):
        return array.detach()
    import torch

    if not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)

"""The choice of the backend that computes the signs: by name, checked, or by `auto`."""

from __future__ import annotations

import importlib.util
import os
from typing import NamedTuple

from hvdgrab.balance.sign_rules import SignRule
from hvdgrab.errors import ConfigError

BACKENDS = ("reference", "numba", "torch", "triton")
_EXTRA = {"numba": "fast", "torch": "torch", "triton": "gpu"}
"""Packages that the backends of the same names need, and the extras of hvdgrab that install them."""

# Measured on one core of an AMD EPYC (Zen 3), minima of interleaved runs: the cost of a vector, and of importing numba and
# loading the loops from the disk cache.  Compiling them, once after an installation, takes about 7 s.
REFERENCE_NS, REFERENCE_NS_PER_VALUE = 2500.0, 0.5
NUMBA_NS, NUMBA_NS_PER_VALUE = 100.0, 0.2
NUMBA_LOAD_NS = 1.3e9


class Choice(NamedTuple):
    """A backend and the reason for it."""

    name: str
    """"reference", "numba", "torch" or "triton"."""
    why: str
    """One sentence."""


def choose(name: str, *, device: str, width: int, count: int, rule: SignRule, float64: bool = False) -> Choice:
    """Choose the backend for `count` vectors of `width` values on a device; a choice by name is checked, never replaced.

    The result depends on the arguments, the installed packages and ``TRITON_INTERPRET`` alone, so that all ranks of a uniform
    cluster agree.

    Args:
        name: "auto" or a backend.
        device: the vectors' device type, "cpu" for NumPy arrays.
        width: values of a vector.
        count: vectors of an epoch, or of the only call.
        rule: the sign rule.
        float64: whether the running sum is float64.

    Raises:
        ConfigError: an unknown backend, one that is not installed, or one that lacks the rule or the device.
    """
    if name == "auto":
        return _auto(device, width, count, rule, float64)
    if name not in BACKENDS:
        raise ConfigError(f"unknown balance backend {name!r}; valid are 'auto', {', '.join(map(repr, BACKENDS))}")
    require(name)
    if name == "triton":
        _check_triton(device, rule, float64)
    return Choice(name, f"{name}: asked for by name")


def require(name: str) -> None:
    """Raise ConfigError, with the command that installs it, if a backend's package is missing."""
    if name in _EXTRA and not _installed(name):
        line = f'pip install "hvdgrab[{_EXTRA[name]}]"'
        raise ConfigError(f"the balance backend {name!r} needs {name}, which is not installed: {line}, or choose 'auto'")


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _check_triton(device: str, rule: SignRule, float64: bool) -> None:
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            f"the balance backend 'triton' needs vectors on a CUDA device, not on {device}: "
            "choose 'auto' (TRITON_INTERPRET=1 runs it slowly anywhere, for tests)"
        )
    if not rule.plain or float64:
        raise ConfigError(
            "the balance backend 'triton' has the greedy rule without damping and a float32 running sum only; "
            "'torch' has every rule on any device"
        )


def _auto(device: str, width: int, count: int, rule: SignRule, float64: bool) -> Choice:
    if device != "cpu":
        if device == "cuda" and rule.plain and not float64 and _installed("triton"):
            return Choice("triton", f"triton: the vectors are on {device}, and its kernel never waits for the host")
        return Choice("torch", f"torch: the vectors are on {device}, for which triton is not installed or lacks the rule")
    saved = count * (REFERENCE_NS - NUMBA_NS + (REFERENCE_NS_PER_VALUE - NUMBA_NS_PER_VALUE) * width)
    case = f"{count} vectors of {width}"
    if saved < NUMBA_LOAD_NS:
        return Choice("reference", f"reference: loading numba takes longer than it saves on {case}")
    if not _installed("numba"):
        return Choice("reference", f"reference: numba would save {saved / 1e9:.1f} s on {case}, but is not installed")
    return Choice("numba", f"numba: saves about {saved / 1e9:.1f} s on {case}, more than loading it takes")

"""The table of compressors.  Every entry is checked when it is made, so that an incomplete one fails at import."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from hvdgrab.compression.base import Compressor
from hvdgrab.errors import ConfigError

C = TypeVar("C", bound=Callable[..., Any])

_KINDS: dict[str, Callable[..., Compressor]] = {}
_PARTS = ("width", "wire_bytes", "compress", "encode", "expand", "expand_many", "tolerance", "projection", "info")


def register(kind: str) -> Callable[[C], C]:
    """Register the decorated class as compressor `kind`; the keywords of its constructor are its options.

    Raises:
        ConfigError: the name is taken, or the class lacks a part of `hvdgrab.compression.base.Compressor`.
    """

    def enter(made: C) -> C:
        if kind in _KINDS:
            raise ConfigError(f"the compressor {kind!r} is registered twice, by {_KINDS[kind]} and {made}")
        lacking = [name for name in _PARTS if not hasattr(made, name)]
        if lacking:
            raise ConfigError(f"the compressor {kind!r} lacks {', '.join(lacking)}")
        _KINDS[kind] = made
        return made

    return enter


def compressor_kinds() -> tuple[str, ...]:
    """The names that `build_compressor` takes, sorted."""
    return tuple(sorted(_KINDS))


def build_compressor(kind: str, **options: Any) -> Compressor:
    """Build the compressor `kind`.

    Args:
        kind: one of `compressor_kinds()`.
        **options: keywords of that compressor.

    Raises:
        ConfigError: unknown kind, or an option that this kind does not have; the message lists the valid ones.
    """
    if kind not in _KINDS:
        raise ConfigError(f"unknown compressor {kind!r}; valid are {', '.join(compressor_kinds())}")
    valid = list(inspect.signature(_KINDS[kind]).parameters)
    unknown = sorted(set(options) - set(valid))
    if unknown:
        options_there = ", ".join(valid) or "none at all"
        raise ConfigError(f"the compressor {kind!r} has no option {', '.join(unknown)}; valid are {options_there}")
    built = _KINDS[kind](**options)
    if built.info.kind != kind:
        raise ConfigError(f"the compressor registered as {kind!r} calls itself {built.info.kind!r}")
    return built

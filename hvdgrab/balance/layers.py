"""Layers: which parameters take part in the ordering, and whether each has the same weight.

A table of parameters says where each one lies in a gradient vector: a mapping of name to (start, length), or a sequence of
(name, length) for parameters that lie one after the other.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from hvdgrab.errors import UsageError

Table = Mapping[str, tuple[int, int]] | Sequence[tuple[str, int]]
SHOWN = 5
"""Most names that an error message suggests."""


def select_layers(names: Sequence[str], globs: Iterable[str]) -> list[int]:
    """Find the indices of the names that match any of the patterns, in the order of `names`.

    Patterns are those of `fnmatch`, case-sensitive: ``*`` any characters (dots too), ``?`` one,
    ``[abc]`` one of these, ``[!abc]`` none of them::

        select_layers(["conv.weight", "conv.bias", "head.weight"], ["conv.*", "*.weight"]) -> [0, 1, 2]

    Args:
        names: of the parameters.
        globs: patterns, at least one.

    Raises:
        UsageError: no pattern, or one that matches no name; the message suggests similar names.
    """
    patterns = list(globs)
    if not patterns:
        raise UsageError("no pattern of parameter names was given; leave layers out to take all parameters")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(f"no parameter matches {pattern!r}; {_near(pattern, names)}")
    return [index for index, name in enumerate(names) if any(fnmatchcase(name, pattern) for pattern in patterns)]


def spans_of(table: Table, d: int) -> dict[str, slice]:
    """Find where each parameter lies in a gradient of `d` values.

    Raises:
        UsageError: a name is given twice, a parameter does not lie within 0 … d, or lengths do not add up to d.
    """
    if isinstance(table, Mapping):
        spans = {name: slice(start, start + length) for name, (start, length) in table.items()}
    else:
        spans, start = {}, 0
        for name, length in table:
            if name in spans:
                raise UsageError(f"parameter {name!r} stands twice in the table of parameters")
            spans[name] = slice(start, start + length)
            start += length
        if start != d:
            raise UsageError(f"the parameters' lengths add up to {start}, but a gradient has {d} values")
    for name, span in spans.items():
        if not 0 <= span.start <= span.stop <= d:
            raise UsageError(f"parameter {name!r} would lie at {span.start} … {span.stop}, outside a gradient of {d} values")
    return spans


def normalise_rows(rows: NDArray[np.floating], spans: Iterable[slice]) -> None:
    """Divide each parameter's part of each row by its ℓ2 norm, in place; parts that are zero stay zero.

    Afterwards every parameter has the same weight, whatever the scale of its gradient.  A part that is not finite becomes NaN, so
    that balancing drops the row.

    Args:
        rows: (m, d) floating point.
        spans: where the parameters lie in a row.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        for span in spans:
            part = rows[:, span]
            # divide by the largest value first: squares of gradients of 1e-23 would underflow in float32
            part /= _one_for_zero(np.abs(part).max(axis=1, initial=0.0))[:, None]
            part /= _one_for_zero(np.sqrt(np.einsum("md,md->m", part, part)))[:, None]


def _one_for_zero(norms: NDArray[np.floating]) -> NDArray[np.floating]:
    norms[norms == 0] = 1
    return norms


def _near(pattern: str, names: Sequence[str]) -> str:
    if not names:
        return "there are no parameters"
    plain = "".join(character for character in pattern if character not in "*?[]!")
    containing = [name for name in names if plain and plain.lower() in name.lower()]
    # patterns rarely span whole names, so compare with their parts too
    parts = {part: name for name in reversed(names) for part in (name, *name.split("."))}
    similar = [parts[part] for part in difflib.get_close_matches(plain.strip("."), parts, n=SHOWN)]
    near = list(dict.fromkeys([*containing, *similar]))[:SHOWN]
    if near:
        return f"did you mean one of {', '.join(near)}?"
    more = ", …" if len(names) > SHOWN else ""
    return f"the parameters are {', '.join(names[:SHOWN])}{more}"

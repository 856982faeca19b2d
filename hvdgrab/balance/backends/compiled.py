"""The numba backend: the loops of `hvdgrab.balance.backends.loops`, loaded on first use or by `warm_up`."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import GROUP, Array, host_blocks
from hvdgrab.balance.backends.literal import Decision
from hvdgrab.balance.sign_rules import SignRule, refuse_bad_sum

_LOCK = threading.Lock()


def balance(differences: Array, h: NDArray[Any], rule: SignRule) -> Decision:
    """Balance as `literal.balance` does, compiled: greedy without damping takes four vectors a pass, every other rule one.

    Signs and running sum equal those of the literal loop, bit for bit, until a product is so near to zero that the order of its
    summation decides its sign.  That order depends on the grouping of vectors into calls (four at a time from the start of a
    call).  If products are sums without rounding, as of integers below 2^24, the grouping does not matter.

    Raises:
        UsageError: h is not finite.
    """
    loops = _loops()
    m = len(differences)
    signs, dropped = np.ones(m, dtype=np.int8), np.zeros(m, dtype=bool)
    uniform = rule.draw(m)
    start = 0
    for rows in host_blocks(differences, h.dtype):
        part = slice(start, start + len(rows))
        _balance_block(loops, rows, h, rule, uniform[part], signs[part], dropped[part])
        start += len(rows)
    if dropped.any():
        refuse_bad_sum(h)
    return signs, dropped


def warm_up(precision: type[Any], rule: SignRule) -> None:
    """Import numba and compile, or load from disk, what `balance` will run for this type of running sum and this rule.

    Idempotent and thread-safe: a concurrent call of `balance` waits for it.
    """
    trial = SignRule(rule.kind, rule.damping)
    # two groups and one more vector, so that every loop of the rule runs
    balance(np.zeros((2 * GROUP + 1, 1), dtype=precision), np.zeros(1, dtype=precision), trial)


def _balance_block(
    loops: ModuleType,
    rows: NDArray[Any],
    h: NDArray[Any],
    rule: SignRule,
    uniform: NDArray[np.float64],
    signs: NDArray[np.int8],
    dropped: NDArray[np.bool_],
) -> None:
    rows = rows.view()
    rows.flags.writeable = False  # else numba compiles the loops for writable and for read-only rows
    done, group, room = 0, len(rows), (np.empty(10), np.empty(GROUP, dtype=h.dtype))
    while done < len(rows):
        if rule.plain:
            done += loops.greedy(rows[done:], h, *room, signs[done:])
            group = GROUP  # a group with a non-finite value, or the rest
        end = min(done + group, len(rows))
        if done < end:
            part = slice(done, end)
            loops.one_by_one(rows[part], h, rule.damping, rule.code, rule.state, uniform[part], signs[part], dropped[part])
        done = end


def _loops() -> ModuleType:
    with _LOCK:
        from hvdgrab.balance.backends import loops
    return loops


def private_directory(parent: Path) -> Path | None:
    """A directory of this user alone below `parent` (mode 0700), for compiled code; None if it cannot be made.

    Code is loaded from it, so a directory that somebody else could write to is refused.
    """
    path = parent / f"hvdgrab-numba-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError:
        return None
    own = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return path if own else None

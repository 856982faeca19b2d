"""What ordering costs in memory: the same training with and without it, for models of several sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvdgrab.bench.runs import BenchError, Variant

Row = dict[str, object]
SIZES = (1, 10, 100)
"""Millions of parameters."""
MEBI = 2**20


def memory(sizes: Sequence[int], variants: Sequence[Variant], *, tell: Callable[[Row], None] | None = None) -> list[Row]:
    """One row a size and variant, in MiB: torch's peak without ordering, and what ordering adds to it.

    ``tensors`` is the peak of torch's allocator, ``arrays`` what NumPy holds at the end, ``rss`` the process's peak, which also
    counts imported code.  ``wrong`` is not 0 where a run did not train, or loaded numba although nothing there needs it.
    """
    rows: list[Row] = []
    for size in sizes:
        plain = _run(size, "plain", {})
        for variant in variants:
            ordered = _run(size, variant.order, variant.grab)
            rows.append({"millions": size, "order": str(variant), **compare(plain, ordered)})
            if tell is not None:
                tell(rows[-1])
    return rows


def compare(plain: dict[str, Any], ordered: dict[str, Any]) -> Row:
    """The figures of one row."""
    extra = {name: (ordered[name] - plain[name]) / MEBI for name in ("tensors", "arrays", "rss")}
    return {
        "plain_tensors": plain["tensors"] / MEBI,
        **{f"extra_{name}": value for name, value in extra.items()},
        "extra": extra["tensors"] + extra["arrays"],
        "wrong": int(plain["tensors"] <= 0) + int(ordered["numba"]) + sum(map(_odd, (plain, ordered))),
    }


def _odd(run: dict[str, Any]) -> int:
    first, last = run["losses"]
    return int(not (0 < last < 100 and 0 < first < 100))


def _run(size: int, order: str, grab: Mapping[str, object]) -> dict[str, Any]:
    command = [sys.executable, "-m", "hvdgrab.bench.memory_program", str(size), order, json.dumps(grab)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the training of {size} million parameters under '{order}' failed:\n{done.stderr[-3000:]}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured

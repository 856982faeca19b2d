"""``hvdgrab-bench gather``: the collective calls over a network, flat and hierarchical, in time and in bytes.

The habits are those of the OSU micro-benchmarks and nccl-tests: a warm-up, the slowest rank's time of every call, contents that
are checked, and the traffic that the cards counted rather than the one that was computed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from hvdgrab.bench.hosts import hosts
from hvdgrab.bench.runs import BenchError, Site

PROGRAM = "hvdgrab.bench.gather_program"
_SHOWN = 3000


def gather(
    site: Site, count: int | None, rate: str | None, operations: Sequence[str], sizes: Sequence[int], calls: int
) -> dict[str, Any]:
    """Measure on this machine, or on ``count`` hosts made on it: ``topology``, ``mpi``, ``network`` and ``rows``.

    Args:
        site: how ranks are started; with hosts, ``site.ranks`` on each of them.
        count: hosts to make; None: none.
        rate: of every host's link, as tc(8) spells it; None: not limited.
        operations: of `hvdgrab.bench.gather_program.OPERATIONS`.
        sizes: bytes a rank.
        calls: that are timed of each.

    Raises:
        BenchError: hosts cannot be made, or the ranks failed.
    """
    # mpi4py's own runner ends all ranks where one raises.
    given = {"operations": ",".join(operations), "sizes": ",".join(map(str, sizes)), "calls": str(calls)}
    arguments = ["-m", "mpi4py", "-m", PROGRAM, *(word for name, value in given.items() for word in (f"--{name}", value))]
    try:
        if count is None:
            command = [*site.launch(), sys.executable, *arguments]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=site.timeout, check=False, stdin=subprocess.DEVNULL
            )
            network = "one host, no network"
        else:
            with hosts(count, rate) as net:
                done = net.mpirun(site.ranks, arguments, timeout=site.timeout)
            network = f"{count} hosts in network namespaces of one machine, {rate or 'links as fast as it is'}"
    except subprocess.TimeoutExpired:
        raise BenchError(f"{PROGRAM} did not end within {site.timeout:g} s") from None
    if done.returncode:
        raise BenchError(f"{PROGRAM} ended with code {done.returncode}; its last lines:\n{(done.stdout + done.stderr)[-_SHOWN:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return {"network": network, **{key: value for key, value in result.items() if key != "rows"}, "rows": compare(result["rows"])}


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with how many times faster hierarchical is than flat, by medians, on its own rows."""
    flat = {(row["operation"], row["bytes"]): row["median_ms"] for row in rows if row["algorithm"] == "flat"}

    def faster(row: dict[str, Any]) -> float | None:
        if row["algorithm"] == "flat":
            return None
        return float(flat[row["operation"], row["bytes"]] / row["median_ms"])

    return [{**row, "x_flat": faster(row)} for row in rows]

"""``hvdgrab-bench gather``: time and bytes on the wire of the collective calls, flat and hierarchical.

As in the OSU micro-benchmarks and nccl-tests, there is a warm-up, the time of a call is that of the slowest rank, and contents
are checked.  Traffic is read from the network cards' counters, not computed.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdgrab.bench.runs import BenchError, Site, failure

OPERATIONS = ("gather", "allgather", "broadcast", "alltoall")
PROGRAM = "hvdgrab.bench.gather_program"
INFINIBAND = Path("/sys/class/infiniband")


def gather(site: Site, operations: Sequence[str], sizes: Sequence[int], calls: int) -> dict[str, Any]:
    """Measure, and return ``topology``, ``mpi``, ``network`` and ``rows``.

    Args:
        site: how ranks are started.
        operations: of `OPERATIONS`.
        sizes: bytes a rank.
        calls: timed calls of each case.

    Raises:
        BenchError: the ranks failed.
    """
    given = {"operations": ",".join(operations), "sizes": ",".join(map(str, sizes)), "calls": str(calls)}
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    # mpi4py's runner ends all ranks if one raises
    command = site.command(["-m", "mpi4py", "-m", PROGRAM, *options])
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=site.timeout, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{PROGRAM} did not end within {site.timeout:g} s") from None
    if done.returncode:
        raise failure(f"{PROGRAM} ended with code {done.returncode}", done.stdout + done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return {
        "network": site.network, **{key: value for key, value in result.items() if key != "rows"}, "rows": compare(result["rows"])
    }  # fmt: skip


def compare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to the rows of hierarchical calls how many times faster they are than flat ones, by medians."""
    flat = {(row["operation"], row["bytes"]): row["median_ms"] for row in rows if row["algorithm"] == "flat"}

    def faster(row: dict[str, Any]) -> float | None:
        if row["algorithm"] == "flat":
            return None
        return float(flat[row["operation"], row["bytes"]] / row["median_ms"])

    return [{**row, "x_flat": faster(row)} for row in rows]


@dataclass(frozen=True)
class Card:
    """The counters of a network card: bytes and packets, headers included."""

    received: int
    sent: int
    packets_received: int = 0
    packets_sent: int = 0

    def __sub__(self, other: Card) -> Card:
        return Card(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

    def __add__(self, other: Card) -> Card:
        return Card(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def cards(table: Path) -> dict[str, Card]:
    """Read the cards of a table like /proc/net/dev, by name, without the loopback."""
    found = {}
    for line in table.read_text().splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() != "lo":
            fields = [int(field) for field in counters.split()]
            found[name.strip()] = Card(fields[0], fields[8], fields[1], fields[9])
    return found


def all_cards(table: Path, infiniband: Path = INFINIBAND) -> Card:
    """Add up all cards, and InfiniBand's own counters, which /proc/net/dev does not include."""
    total = sum(cards(table).values(), Card(0, 0))
    for port in infiniband.glob("*/ports/*/counters"):
        words = [int((port / f"port_{name}_data").read_text()) for name in ("rcv", "xmit")]
        total += Card(4 * words[0], 4 * words[1])  # InfiniBand counts words of four bytes
    return total

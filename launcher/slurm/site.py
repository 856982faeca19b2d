"""What a cluster offers: partitions, settings, PMI types, as SLURM's programs print them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.slurm.answers import NoAnswer
from launcher.spec.hosts import expand_nodelist

SINFO_FORMAT = "%R|%a|%l|%D|%T|%c|%m|%G|%f|%N"
SINFO_HEADER = "PARTITION|AVAIL|TIMELIMIT|NODES|STATE|CPUS|MEMORY|GRES|AVAIL_FEATURES|NODELIST"


@dataclass(frozen=True)
class Partition:
    """A partition, its largest node, and all its features."""

    name: str
    up: bool
    limit: float | None
    """Seconds that a job may take; None for no limit."""
    nodes: int
    usable: int
    """Nodes that are not down or drained."""
    cpus: int
    memory: int
    """Of the largest node, MiB."""
    gpus: int
    features: frozenset[str]
    names: frozenset[str] = frozenset()
    """Of its nodes; empty where they are not known."""


def parse_partitions(text: str) -> dict[str, Partition]:
    """Partitions by name from ``sinfo -o SINFO_FORMAT``.  Raises NoAnswer where that is no such table."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("CLUSTER:")]
    if not lines or lines[0] != SINFO_HEADER:
        raise NoAnswer("sinfo printed no table")
    found: dict[str, Partition] = {}
    for line in lines[1:]:
        cells = line.split("|")
        if len(cells) != 10 or not cells[3].isdigit():
            raise NoAnswer(f"sinfo printed {line[:80]!r}")
        row = _row(cells)
        known = found.get(row.name)
        found[row.name] = row if known is None else _merged(known, row)
    return found


def _row(cells: list[str]) -> Partition:
    name, available, limit, nodes, state, cpus, memory, gres, features, nodelist = cells
    count = int(nodes)
    bad = re.match(r"(down|drain|fail|inval|unk|maint|power)", state.lower()) is not None or state.endswith("*")
    known = frozenset() if features == "(null)" else frozenset(features.split(","))
    try:
        names = frozenset(expand_nodelist(nodelist))
    except ValueError:
        names = frozenset()
    return Partition(
        name, available == "up", seconds(limit), count, 0 if bad else count, _number(cpus), _number(memory), gpus_in(gres), known,
        names,
    )  # fmt: skip


def _merged(one: Partition, other: Partition) -> Partition:
    return Partition(
        one.name, one.up, one.limit, one.nodes + other.nodes, one.usable + other.usable, max(one.cpus, other.cpus),
        max(one.memory, other.memory), max(one.gpus, other.gpus), one.features | other.features,
        one.names | other.names,
    )  # fmt: skip


def _number(text: str) -> int:
    found = re.match(r"\d+", text)
    return int(found.group(0)) if found else 0


def gpus_in(gres: str) -> int:
    """GPUs of a node in ``gpu:a100:4(S:0-1),gpu:2``."""
    return sum(int(number) for number in re.findall(r"gpu(?::[A-Za-z][\w.-]*)?:(\d+)", gres))


def seconds(limit: str) -> float | None:
    """SLURM's ``days-hours:minutes:seconds`` in seconds; None for infinite and what is not understood."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", limit)
    if found is None:
        return None
    days, hours, minutes, rest = (int(part) if part else 0 for part in found.groups())
    if ":" not in limit:
        return days * 86_400.0 + (rest * 3_600 if "-" in limit else rest * 60)
    return days * 86_400.0 + hours * 3_600 + minutes * 60 + rest


def parse_config(text: str) -> dict[str, str]:
    """Settings from ``scontrol show config``."""
    return {key.strip(): value.strip() for key, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def default_partition(text: str) -> str | None:
    """The partition that ``sinfo -h -o %P`` marks with a star."""
    return next((line.strip()[:-1] for line in text.splitlines() if line.strip().endswith("*")), None)


def names_in(text: str) -> tuple[str, ...]:
    """First cells of ``sacctmgr -n -P``, each once."""
    cells = (line.partition("|")[0].strip() for line in text.splitlines())
    return tuple(dict.fromkeys(cell for cell in cells if cell))


def reservations_in(text: str) -> tuple[str, ...]:
    """Names in what ``scontrol show reservation`` prints."""
    return tuple(re.findall(r"ReservationName=(\S+)", text))


def expected_start(stderr: str) -> tuple[str, tuple[str, ...]] | None:
    """Time and nodes in what ``sbatch --test-only`` says; None where it says neither."""
    found = re.search(r"to start at (\S+) using \d+ processors on (?:nodes )?(\S+)", stderr)
    if found is None:
        return None
    try:
        return found.group(1), tuple(expand_nodelist(found.group(2)))
    except ValueError:
        return found.group(1), ()

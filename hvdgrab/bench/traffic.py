"""What network cards have carried, from the kernel's counters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

INFINIBAND = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class Card:
    """What a network card has carried since it was made, in bytes and packets, headers included."""

    received: int
    sent: int
    packets_received: int = 0
    packets_sent: int = 0

    def __sub__(self, other: Card) -> Card:
        return Card(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

    def __add__(self, other: Card) -> Card:
        return Card(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def cards(table: Path) -> dict[str, Card]:
    """Every card of a table like /proc/net/dev, by name; the loopback is none."""
    found = {}
    for line in table.read_text().splitlines():
        name, colon, counters = line.partition(":")
        if colon and name.strip() != "lo":
            fields = [int(field) for field in counters.split()]
            found[name.strip()] = Card(fields[0], fields[8], fields[1], fields[9])
    return found


def all_cards(table: Path, infiniband: Path = INFINIBAND) -> Card:
    """All cards together, with InfiniBand's own counters, which /proc/net/dev does not see."""
    total = sum(cards(table).values(), Card(0, 0))
    for port in infiniband.glob("*/ports/*/counters"):
        words = [int((port / f"port_{name}_data").read_text()) for name in ("rcv", "xmit")]
        total += Card(4 * words[0], 4 * words[1])  # they count words of four bytes
    return total

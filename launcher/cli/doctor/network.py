"""Network cards and InfiniBand ports, with their rates, as the kernel shows them under /sys/class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.cli.doctor.checks import Check
from launcher.cli.doctor.mpi import Build

NET = Path("/sys/class/net")
INFINIBAND = Path("/sys/class/infiniband")
_IGNORED = ("lo", "ifb", "veth", "docker", "virbr", "br-", "cni", "flannel", "dummy", "tunl", "sit", "ip6tnl")
"""Loopback and what containers make: no way to another host."""


@dataclass(frozen=True)
class Card:
    """A network interface that leads out of this host."""

    name: str
    up: bool
    megabits: int | None
    """Link rate in Mbit/s; None where the driver does not tell, as for virtual cards."""
    mtu: int | None


@dataclass(frozen=True)
class Port:
    """One port of an InfiniBand or RoCE device."""

    device: str
    number: str
    active: bool
    state: str
    rate: str
    """As the kernel says it, such as ``100 Gb/sec (4X EDR)``."""
    layer: str
    """InfiniBand or Ethernet."""


def cards(root: Path = NET) -> list[Card]:
    """The interfaces that may lead to other hosts, by name."""
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return [_card(root / name) for name in names if not name.startswith(_IGNORED)]


def _card(path: Path) -> Card:
    speed, mtu = _number(path / "speed"), _number(path / "mtu")
    return Card(path.name, _read(path / "operstate") not in ("down", "lowerlayerdown", "notpresent"), speed, mtu)


def ports(root: Path = INFINIBAND) -> list[Port]:
    """All ports of all devices."""
    found = []
    for device in sorted(root.iterdir()) if root.is_dir() else []:
        for port in sorted((device / "ports").iterdir()) if (device / "ports").is_dir() else []:
            state = _read(port / "state").partition(":")[2].strip() or "unknown"
            layer = _read(port / "link_layer") or "unknown"
            found.append(Port(device.name, port.name, state == "ACTIVE", state, _read(port / "rate") or "unknown rate", layer))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdecimal() and int(text) > 0 else None


def rate_text(megabits: int | None) -> str:
    """``10 Gbit/s``."""
    if megabits is None:
        return "rate unknown"
    return f"{megabits / 1000:g} Gbit/s" if megabits >= 1000 else f"{megabits} Mbit/s"


def card_check(found: Sequence[Card]) -> Check:
    """The cards that lead out."""
    texts = [f"{card.name} {rate_text(card.megabits) if card.up else 'down'}" for card in found]
    if not any(card.up for card in found):
        fix = "jobs on this host alone work; for several hosts, bring an interface up (`ip link`)"
        return Check("network", "note", ", ".join(texts) or "loopback only", fix)
    if sum(card.up for card in found) > 1:
        fix = "several ways lead out: where ranks on other hosts cannot be reached, name the right one with `network.interface`"
        return Check("network", "note", ", ".join(texts), fix)
    return Check("network", "ok", ", ".join(texts))


def infiniband_checks(found: Sequence[Port], builds: Sequence[Build]) -> list[Check]:
    """The ports, and whether the MPI can use them; nothing where there are none."""
    if not found:
        return [Check("InfiniBand", "ok", "none; MPI uses TCP between hosts")]
    texts = ", ".join(f"{port.device}:{port.number} {port.layer} {port.state} {port.rate}" for port in found)
    asleep = [f"{port.device}:{port.number}" for port in found if not port.active]
    if len(asleep) == len(found):
        fix = "no port is active: check cables and the subnet manager (`ibstat`); until then MPI uses TCP"
        return [Check("InfiniBand", "note", texts, fix)]
    checks = [Check("InfiniBand", "ok", texts)]
    if asleep:
        active = ",".join(f"{port.device}:{port.number}" for port in found if port.active)
        fix = f"keep UCX to the active ports: `network.ucx_devices: {active}`"
        checks = [Check("InfiniBand", "note", f"{texts}; not active: {', '.join(asleep)}", fix)]
    if builds and builds[0].ucx is False:
        fix = "load an MPI that was built with UCX; this one uses TCP, at a fraction of the rate"
        checks.append(Check("MPI over InfiniBand", "note", f"{builds[0].label} was built without UCX", fix))
    return checks

"""What the settings of an ordering make: compressor, views of a gradient, coordinator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.compression import Compressor, build_compressor
from hvdgrab.compression.fold import FoldSketch
from hvdgrab.config import SINGLE_RANK_ORDERS, GraBConfig
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.coordinators import DesignatedCoordinator, IndependentCoordinator, ReplicatedCoordinator
from hvdgrab.coordinator.pairing import CPU
from hvdgrab.coordinator.payloads import PayloadState
from hvdgrab.coordinator.served import ServedCoordinator
from hvdgrab.coordinator.sharded import ShardedCoordinator
from hvdgrab.coordinator.state import Coordinator, SeededCoordinator
from hvdgrab.coordinator.unit import MEASURING_SEED, Views
from hvdgrab.errors import UsageError

BOUND_WIDTH = 256
"""Floats of the sketch from which the herding bound is estimated."""
MESSAGE_BYTES = 2**16
"""Where `pairs_per_message` is not set, as many pairs travel together as fit into this, and at most `MOST_PAIRS`."""
MOST_PAIRS = 16


@dataclass(frozen=True)
class Parts:
    """One rank's, made once a session."""

    width: int
    """Values of the vector that is balanced: d, or the sketch's width."""
    pairs_per_message: int
    views: Views
    coordinator: Coordinator
    ordering: str
    """The settings without which a running sum means something else; `SavedState` compares them."""
    said: str
    """What is balanced and what it costs on the wire, for a line at the start."""


def make_parts(config: GraBConfig, book: OrderBook, dimension: int, device: torch.device = CPU) -> Parts:
    """What a session over gradients of ``dimension`` values consists of.

    Raises:
        UsageError: settings that do not fit the number of ranks.
        ConfigError: settings that no compressor or balancer takes.
    """
    if config.order in SINGLE_RANK_ORDERS and book.size > 1:
        raise UsageError(
            f"order '{config.order}' orders a single rank, but there are {book.size}: use 'id-grab' (each alone) or 'cd-grab'"
        )
    if config.designated_rank >= book.size:
        raise UsageError(f"designated_rank is {config.designated_rank}, but the ranks are 0 … {book.size - 1}")
    compressor = _compressor(config)
    room = _room(config, compressor, dimension, book.n)
    views = Views(
        balanced=config.uses_gradients,
        projection=compressor.projection,
        measuring=FoldSketch(BOUND_WIDTH, config.seed ^ MEASURING_SEED) if config.bound == "sketch" else None,
        exact=config.bound == "exact",
    )
    wire = compressor.wire_bytes(dimension)
    if config.coordinator == "sharded":
        wire = 4 * -(-dimension // book.size) * (book.size - 1)
    said = _said(config, compressor.width(dimension), dimension, wire, room)
    coordinator = _coordinator(config, book, dimension, compressor, room, device)
    if coordinator.balancer is not None:
        said = f"{said}; {coordinator.balancer.choice}"
    return Parts(compressor.width(dimension), room, views, coordinator, _ordering(config, compressor), said)


def _ordering(config: GraBConfig, compressor: Compressor) -> str:
    info = compressor.info
    parts: dict[str, Any] = {
        "compression": [info.kind, *(f"{name}={value}" for name, value in info.options if name != "seed")],
        "balance": config.balance.model_dump(mode="json", exclude_defaults=True, exclude={"backend"}),
        "layers": config.layers,
        "normalise_layers": config.normalise_layers,
        "coordinator": "" if config.coordinator in ("designated", "independent") else config.coordinator,
    }
    return json.dumps({name: value for name, value in parts.items() if value})


def _compressor(config: GraBConfig) -> Compressor:
    """A sketch's signs come from the run's seed, which is the same on all ranks."""
    options = config.compression.options()
    if config.compression.kind == "sketch":
        options["seed"] = config.seed
    return build_compressor(config.compression.kind, **options)


def _coordinator(
    config: GraBConfig, book: OrderBook, dimension: int, compressor: Compressor, room: int, device: torch.device
) -> Coordinator:
    root, pairs = config.designated_rank, book.n // 2
    if config.balance.backend in ("reference", "numba"):  # asked for by name: they work on the host
        device = CPU
    if config.order == "id-grab":
        alone = PairBalancer(compressor.width(dimension), config.balance, seed=config.seed, expected=pairs)
        return IndependentCoordinator(book.rank, book.size, pairs, root, alone)
    if config.order != "cd-grab":
        return SeededCoordinator(book.size, pairs, root)
    if config.coordinator == "sharded":
        return ShardedCoordinator(book.rank, book.size, pairs, dimension, room, config.balance, config.seed, device)
    balances = config.coordinator == "replicated" or (config.coordinator == "designated" and book.rank == root)
    settings: dict[str, Any] = {
        "size": book.size,
        "pairs": pairs,
        "dimension": dimension,
        "compressor": compressor,
        "pairs_per_message": room,
        "root": root,
        "balancer": _balancer(config, book.size, pairs, compressor.width(dimension), device) if balances else None,
        "device": device,
    }
    if config.coordinator == "replicated":
        return ReplicatedCoordinator(rank=book.rank, **settings)
    if config.coordinator == "server":
        return ServedCoordinator(config, book.n, **settings)
    return DesignatedCoordinator(**settings)


def _balancer(config: GraBConfig, size: int, pairs: int, width: int, device: torch.device) -> PairBalancer:
    return PairBalancer(width, config.balance, seed=config.seed, expected=size * pairs, device=device.type)


def serving_state(config: GraBConfig, ranks: int, units: int, dimension: int) -> tuple[PayloadState, str]:
    """What a server holds for ``ranks`` ranks with as many ``units`` each, and what it says of that at the start.

    Raises:
        ConfigError: what the settings ask for is not installed here.
    """
    compressor, pairs = _compressor(config), units // 2
    balancer = _balancer(config, ranks, pairs, compressor.width(dimension), CPU)
    room = _room(config, compressor, dimension, units)
    state = PayloadState(ranks, pairs, dimension, compressor, room, 0, balancer, CPU)
    said = _said(config, compressor.width(dimension), dimension, compressor.wire_bytes(dimension), room)
    return state, f"{said}; {balancer.choice}"


def _room(config: GraBConfig, compressor: Compressor, dimension: int, units: int) -> int:
    fitting = max(1, min(MESSAGE_BYTES // compressor.wire_bytes(dimension), MOST_PAIRS, units // 2))
    return config.pairs_per_message or fitting


def _said(config: GraBConfig, width: int, dimension: int, wire: int, room: int) -> str:
    return (
        f"{dimension:,} gradient values as {config.compression.kind} ({width:,} values, {wire:,} bytes a pair and rank, "
        f"{room} pairs a message)"
    )

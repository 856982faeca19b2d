"""What the settings of an ordering make: compressor, views of a gradient, coordinator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hvdgrab.balance.balancer import PairBalancer
from hvdgrab.compression import Compressor, build_compressor
from hvdgrab.compression.fold import FoldSketch
from hvdgrab.config import SINGLE_RANK_ORDERS, GraBConfig
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.coordinators import Coordinator, DesignatedCoordinator, IndependentCoordinator, SeededCoordinator
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


def make_parts(config: GraBConfig, book: OrderBook, dimension: int) -> Parts:
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
    fitting = max(1, min(MESSAGE_BYTES // compressor.wire_bytes(dimension), MOST_PAIRS, book.n // 2))
    room = config.pairs_per_message or fitting
    views = Views(
        balanced=config.uses_gradients,
        projection=compressor.projection,
        measuring=FoldSketch(BOUND_WIDTH, config.seed ^ MEASURING_SEED) if config.bound == "sketch" else None,
        exact=config.bound == "exact",
    )
    width, wire = compressor.width(dimension), compressor.wire_bytes(dimension)
    said = (
        f"{dimension:,} gradient values as {config.compression.kind} ({width:,} values, {wire:,} bytes a pair and rank, "
        f"{room} pairs a message)"
    )
    coordinator = _coordinator(config, book, dimension, compressor, room)
    return Parts(width, room, views, coordinator, _ordering(config, compressor), said)


def _ordering(config: GraBConfig, compressor: Compressor) -> str:
    info = compressor.info
    parts: dict[str, Any] = {
        "compression": [info.kind, *(f"{name}={value}" for name, value in info.options if name != "seed")],
        "balance": config.balance.model_dump(mode="json", exclude_defaults=True, exclude={"backend"}),
        "layers": config.layers,
        "normalise_layers": config.normalise_layers,
    }
    return json.dumps({name: value for name, value in parts.items() if value})


def _compressor(config: GraBConfig) -> Compressor:
    """A sketch's signs come from the run's seed, which is the same on all ranks."""
    options = config.compression.options()
    if config.compression.kind == "sketch":
        options["seed"] = config.seed
    return build_compressor(config.compression.kind, **options)


def _coordinator(config: GraBConfig, book: OrderBook, dimension: int, compressor: Compressor, room: int) -> Coordinator:
    root, pairs, width = config.designated_rank, book.n // 2, compressor.width(dimension)

    def balancer(vectors: int) -> PairBalancer:
        return PairBalancer(width, config.balance, seed=config.seed, expected=vectors)

    if config.order == "cd-grab":
        balances = balancer(book.size * pairs) if book.rank == root else None
        return DesignatedCoordinator(book.size, pairs, dimension, compressor, room, root, balances)
    if config.order == "id-grab":
        return IndependentCoordinator(book.rank, book.size, pairs, root, balancer(pairs))
    return SeededCoordinator(book.size, pairs, root)

"""What the settings of a run make: the format of a payload, the views of a gradient, the coordinator."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from hvdgrab.compression.fold import FoldSketch
from hvdgrab.config import SINGLE_RANK_ORDERS, GraBConfig
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.coordinators import Coordinator, IndependentCoordinator
from hvdgrab.coordinator.gradient import CPU, MEASURING_SEED, Views
from hvdgrab.coordinator.payloads import DesignatedCoordinator, Format, ReplicatedCoordinator
from hvdgrab.coordinator.served import ServedCoordinator
from hvdgrab.coordinator.sharded import ShardedCoordinator
from hvdgrab.errors import UsageError

BOUND_WIDTH = 256
"""Floats of the sketch from which the herding bound is estimated."""


@dataclass(frozen=True)
class Parts:
    """What one rank's session is made of."""

    config: GraBConfig
    device: torch.device
    """Where the vectors are that the session takes."""
    format: Format
    views: Views
    coordinator: Coordinator
    ordering: str
    """The settings without which a running sum means something else; `SavedState` compares them."""
    cost: str
    """What is balanced and what it costs on the wire, for a line at the start."""


def build(config: GraBConfig, book: OrderBook, dimension: int, device: torch.device = CPU) -> Parts:
    """The parts of a session over gradients of ``dimension`` values on ``device``.

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
    payloads = Format.of(config, dimension, book.n)
    views = Views(
        balanced=config.uses_gradients,
        projection=payloads.compressor.projection,
        measuring=FoldSketch(BOUND_WIDTH, config.seed ^ MEASURING_SEED) if config.bound == "sketch" else None,
        exact=config.bound == "exact",
    )
    coordinator = _coordinator(config, book, payloads, device)
    shares = 4 * -(-dimension // book.size) * (book.size - 1) if config.coordinator == "sharded" else None
    cost = payloads.describe(coordinator.balancer, shares)
    return Parts(config, device, payloads, views, coordinator, _ordering(config, payloads), cost)


def _ordering(config: GraBConfig, payloads: Format) -> str:
    info = payloads.compressor.info
    parts: dict[str, Any] = {
        "compression": [info.kind, *(f"{name}={value}" for name, value in info.options if name != "seed")],
        "balance": config.balance.model_dump(mode="json", exclude_defaults=True, exclude={"backend"}),
        "layers": config.layers,
        "normalise_layers": config.normalise_layers,
        "coordinator": "" if config.coordinator in ("designated", "independent") else config.coordinator,
    }
    return json.dumps({name: value for name, value in parts.items() if value})


def _coordinator(config: GraBConfig, book: OrderBook, payloads: Format, device: torch.device) -> Coordinator:
    root, pairs = config.designated_rank, book.n // 2
    if config.balance.backend in ("reference", "numba"):  # asked for by name: they work on the host
        device = CPU
    if config.order == "id-grab":
        return IndependentCoordinator(book.rank, book.size, pairs, root, payloads.balancer(config, expected=pairs))
    if config.order != "cd-grab":
        return Coordinator(book.size, pairs, root)
    if config.coordinator == "sharded":
        return ShardedCoordinator(book.rank, book.size, pairs, payloads, config, device)
    balances = config.coordinator == "replicated" or (config.coordinator == "designated" and book.rank == root)
    settings: dict[str, Any] = {
        "size": book.size,
        "pairs": pairs,
        "format": payloads,
        "root": root,
        "balancer": payloads.balancer(config, book.size * pairs, device) if balances else None,
        "device": device,
    }
    if config.coordinator == "replicated":
        return ReplicatedCoordinator(rank=book.rank, **settings)
    if config.coordinator == "server":
        return ServedCoordinator(config, book.n, **settings)
    return DesignatedCoordinator(**settings)

"""The settings of a run's ordering: the ``grab:`` section of a job's YAML.  Imports neither torch nor MPI."""

from __future__ import annotations

from hvdgrab.config.sections import (
    BalanceConfig,
    CommunicationConfig,
    CompressionConfig,
    CompressionKind,
    ReorderConfig,
)
from hvdgrab.config.settings import (
    COORDINATORS,
    ENVIRONMENT_VARIABLE,
    GRADIENT_ORDERS,
    ORDERS,
    SINGLE_RANK_ORDERS,
    BoundMode,
    Coordinator,
    GraBConfig,
    Order,
    explain,
)

__all__ = [
    "COORDINATORS",
    "ENVIRONMENT_VARIABLE",
    "GRADIENT_ORDERS",
    "ORDERS",
    "SINGLE_RANK_ORDERS",
    "BalanceConfig",
    "BoundMode",
    "CommunicationConfig",
    "CompressionConfig",
    "CompressionKind",
    "Coordinator",
    "GraBConfig",
    "Order",
    "ReorderConfig",
    "explain",
]

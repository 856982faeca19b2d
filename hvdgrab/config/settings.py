"""The settings of a run's ordering: the ``grab:`` section of a job's YAML.

This imports neither torch nor MPI, so that the launcher can validate a spec with it.  The launcher passes the section to the
ranks as JSON in the environment variable ``HVDGRAB_GRAB``, which `GraBConfig.from_environment` reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hvdgrab.config.sections import BalanceConfig, CommunicationConfig, CompressionConfig, ReorderConfig
from hvdgrab.errors import ConfigError

ENVIRONMENT_VARIABLE = "HVDGRAB_GRAB"

Order = Literal[
    "reshuffle", "rr", "shuffle-once", "fixed", "flipflop", "block-reversal", "sync-shuffle",
    "grab", "recursive", "id-grab", "cd-grab",
]  # fmt: skip
ORDERS: tuple[str, ...] = get_args(Order)
GRADIENT_ORDERS = ("grab", "recursive", "id-grab", "cd-grab")
"""Orders made from gradients; the others depend on the seed, the epoch and the rank alone."""

SINGLE_RANK_ORDERS = ("grab", "recursive")
"""Those among them that order one rank alone."""

Coordinator = Literal["designated", "replicated", "sharded", "server", "independent"]
COORDINATORS: tuple[str, ...] = get_args(Coordinator)

BoundMode = Literal["sketch", "exact", "off"]


class GraBConfig(BaseModel):
    """All settings that decide in which order the ranks see their units.

    `from_environment` and `resolve` raise `hvdgrab.errors.ConfigError`; plain construction raises pydantic's own error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    order: Order = "cd-grab"
    """Which rule orders the next epoch; docs/orders.md describes each."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the forming of units, of every random order and of every random sign."""

    passes_per_unit: int = Field(default=1, ge=1)
    """Backward passes that make one unit, if the script splits its local batch."""

    pairs_per_message: int | None = Field(default=None, ge=1, le=2**16)
    """Pair differences that travel together; by default as many as fit into 64 KiB, at most 16."""

    coordinator: Coordinator = "designated"
    """Who balances the pairs of ``cd-grab``.  ``designated``: one rank for all; ``replicated``: every rank for itself, all alike;
    ``sharded``: all together and exactly, each a part of the coordinates; ``server``: a process that does not train;
    ``independent``: each rank its own pairs alone, another name of ``order: id-grab``."""

    designated_rank: int = Field(default=0, ge=0)
    """``designated``: the rank that balances the pairs of all ranks."""

    reorder: ReorderConfig = ReorderConfig.model_construct()
    """In which epochs the ranks coordinate."""

    compression: CompressionConfig = CompressionConfig.model_construct()
    """How a pair difference travels to the rank that balances it."""

    balance: BalanceConfig = BalanceConfig.model_construct()
    """How pair differences are balanced."""

    communication: CommunicationConfig = CommunicationConfig.model_construct()
    """How payloads travel between the ranks."""

    layers: tuple[str, ...] | None = None
    """Glob patterns of parameter names: only these parameters' gradients order the data; by default all do."""

    normalise_layers: bool = False
    """Divide each parameter's gradient by its norm first, so that all of them count alike."""

    bound: BoundMode = "sketch"
    """How the parallel herding bound is measured: estimated from a sketch, exactly (small models only), or not at all."""

    block_size: int | None = Field(default=None, ge=1)
    """Units in a block of ``block-reversal``; by default the square root of the number of units, rounded up."""

    stall_warning: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds after which a waiting rank prints for whom it waits."""

    stall_timeout: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """Seconds after which such a wait ends the job."""

    debug: bool = False
    """Print the first ten units of every rank's order at the beginning of every epoch."""

    @model_validator(mode="before")
    @classmethod
    def _follow_the_coordinator(cls, value: Any) -> Any:
        """Fill in what a coordinator implies for settings that the user left out; given settings are never replaced."""
        if not isinstance(value, dict):
            return value
        implied = {"independent": {"order": "id-grab"}, "sharded": {"compression": "none"}}
        name = value.get("coordinator")
        return {**implied.get(name, {}), **value} if isinstance(name, str) else value

    @model_validator(mode="after")
    def _settings_fit(self) -> GraBConfig:
        for wrong, text in self._contradictions():
            if wrong:
                raise ValueError(text)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        name, backend = self.coordinator, self.balance.backend
        yield (
            name == "independent" and self.order != "id-grab",
            (f"coordinator 'independent' is another name of order 'id-grab', but order is '{self.order}': leave one of them out"),
        )
        yield (
            self.order == "id-grab" and name in ("replicated", "sharded", "server"),
            (
                f"order 'id-grab' balances on every rank alone, coordinator '{name}' brings the ranks together: choose order "
                "'cd-grab', or leave coordinator out"
            ),
        )
        yield (
            name == "server" and self.order != "cd-grab",
            (
                f"coordinator 'server' is a process that balances for order 'cd-grab'; with order '{self.order}' it would have "
                "nothing to do: choose another coordinator"
            ),
        )
        yield (
            name != "designated" and self.designated_rank != 0,
            (f"designated_rank is {self.designated_rank}, but coordinator '{name}' has no designated rank: leave it out"),
        )
        yield (
            name == "sharded" and self.compression.kind != "none",
            (
                f"coordinator 'sharded' balances the exact differences, each rank a part of their coordinates: compression "
                f"'{self.compression.kind}' would make them others. Leave compression out, or choose coordinator 'designated', "
                "which costs less on the wire with a sketch or top-k"
            ),
        )
        yield (
            name == "sharded" and backend not in ("auto", "torch"),
            (
                f"coordinator 'sharded' balances with torch, in block Gram form over all ranks: balance.backend '{backend}' "
                "cannot do that; leave it out"
            ),
        )
        yield (
            self.reorder.while_falling and self.bound == "off",
            ("reorder.while_falling needs the herding bound, but bound is 'off': set bound to 'sketch', or leave it out"),
        )

    @field_validator("layers", mode="before")
    @classmethod
    def _patterns(cls, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) for one in value):
            raise ValueError(f"must be a list of one or more patterns, such as ['encoder.*'], not {value!r}")
        return tuple(value)

    @property
    def uses_gradients(self) -> bool:
        """Whether the order is made from gradients."""
        return self.order in GRADIENT_ORDERS

    @classmethod
    def from_environment(cls) -> GraBConfig:
        """Read the job's settings from ``HVDGRAB_GRAB`` (JSON); the defaults if it is unset."""
        text = os.environ.get(ENVIRONMENT_VARIABLE, "")
        if not text:
            return cls()
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"{ENVIRONMENT_VARIABLE} does not hold valid settings: {explain(error)}") from None

    @classmethod
    def resolve(cls, config: GraBConfig | None = None, **explicit: Any) -> GraBConfig:
        """Merge the script's arguments with the job's YAML.

        A setting that both the script and the YAML give must be equal in both: if one were silently preferred, the other would
        state something that did not happen.

        Args:
            config: settings that the script passes as a whole.
            **explicit: single settings that the script passes; None means "not given".
        """
        job = cls.from_environment()
        merged: dict[str, Any] = {name: getattr(job, name) for name in job.model_fields_set}
        origin = dict.fromkeys(merged, f"the job's YAML (grab: section, {ENVIRONMENT_VARIABLE})")
        sources: list[tuple[str, dict[str, Any]]] = []
        if config is not None:
            sources.append(("the GraBConfig", {name: getattr(config, name) for name in config.model_fields_set}))
        sources.append(("the script's argument", {name: value for name, value in explicit.items() if value is not None}))
        for source, values in sources:
            for name, value in values.items():
                if name in merged and merged[name] != value:
                    raise ConfigError(
                        f"'{name}' is {merged[name]!r} in {origin[name]} but {value!r} in {source}: remove one of the two"
                    )
                merged[name], origin[name] = value, source
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """Describe pydantic's findings in one sentence a setting, without its type codes and links."""
    parts = []
    for item in error.errors():
        path = ".".join(str(key) for key in item["loc"]) or "settings"
        given = item.get("input")
        shown = f" (given: {given!r})" if not isinstance(given, dict) else ""
        parts.append(f"{path}: {item['msg']}{shown}")
    return "; ".join(parts)

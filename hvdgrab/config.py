"""The settings of a run's ordering: the ``grab:`` section of a job's YAML.

Free of torch and MPI, so that the launcher can validate a spec with it.  The launcher hands the section to the ranks
as JSON in the environment variable ``HVDGRAB_GRAB``; `GraBConfig.from_environment` reads it there.
"""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hvdgrab.errors import ConfigError

ENVIRONMENT_VARIABLE = "HVDGRAB_GRAB"

Order = Literal[
    "reshuffle", "rr", "shuffle-once", "fixed", "flipflop", "block-reversal", "sync-shuffle", "grab", "id-grab", "cd-grab"
]
ORDERS: tuple[str, ...] = get_args(Order)
GRADIENT_ORDERS = ("grab", "id-grab", "cd-grab")
"""Orders that look at gradients; the others are functions of the seed, the epoch and the rank alone."""

BoundMode = Literal["sketch", "exact", "off"]


class CompressionConfig(BaseModel):
    """How a pair difference travels to the rank that balances it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["none"] = "none"
    """``none``: the dense fp32 difference, 4 bytes a parameter."""


class GraBConfig(BaseModel):
    """Everything that decides in which order the ranks see their units.

    Raises `hvdgrab.errors.ConfigError` through `from_environment` and `resolve`; plain construction raises pydantic's own error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    order: Order = "cd-grab"
    """Which rule orders the next epoch; see the README for what each one does."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds the forming of units, every random order and every random sign."""

    passes_per_unit: int = Field(default=1, ge=1)
    """Backward passes that make one unit, where a script splits its local batch."""

    pairs_per_message: int = Field(default=1, ge=1)
    """Pair differences that travel together."""

    designated_rank: int = Field(default=0, ge=0)
    """The rank that balances the pairs of all ranks."""

    compression: CompressionConfig = CompressionConfig()

    bound: BoundMode = "sketch"
    """Whether the parallel herding bound is measured: estimated from a sketch, exactly (small models only), or not at all."""

    block_size: int | None = Field(default=None, ge=1)
    """Units in a block of ``block-reversal``; by default the square root of the number of units, rounded up."""

    stall_warning: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds after which a rank that waits for the others says for whom."""

    stall_timeout: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """Seconds after which that wait ends the job."""

    @property
    def uses_gradients(self) -> bool:
        """Whether the order is made from gradients."""
        return self.order in GRADIENT_ORDERS

    @classmethod
    def from_environment(cls) -> GraBConfig:
        """The job's settings from ``HVDGRAB_GRAB`` (JSON), or the defaults where it is unset."""
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

        A setting that the script and the YAML both give must be the same in both: silently preferring one of them would make
        the spec, or the script, say something that did not happen.

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
    """Pydantic's findings as one sentence a setting, without its type codes and links."""
    parts = []
    for item in error.errors():
        path = ".".join(str(key) for key in item["loc"]) or "settings"
        given = item.get("input")
        shown = f" (given: {given!r})" if not isinstance(given, dict) else ""
        parts.append(f"{path}: {item['msg']}{shown}")
    return "; ".join(parts)

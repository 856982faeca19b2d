"""The settings of a run's ordering: the ``grab:`` section of a job's YAML.

Free of torch and MPI, so that the launcher can validate a spec with it.  The launcher hands the section to the ranks
as JSON in the environment variable ``HVDGRAB_GRAB``; `GraBConfig.from_environment` reads it there.
"""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from hvdgrab.errors import ConfigError

ENVIRONMENT_VARIABLE = "HVDGRAB_GRAB"

Order = Literal[
    "reshuffle", "rr", "shuffle-once", "fixed", "flipflop", "block-reversal", "sync-shuffle",
    "grab", "recursive", "id-grab", "cd-grab",
]  # fmt: skip
ORDERS: tuple[str, ...] = get_args(Order)
GRADIENT_ORDERS = ("grab", "recursive", "id-grab", "cd-grab")
"""Orders that look at gradients; the others are functions of the seed, the epoch and the rank alone."""

SINGLE_RANK_ORDERS = ("grab", "recursive")
"""Those among them that order one rank alone."""

BoundMode = Literal["sketch", "exact", "off"]


CompressionKind = Literal["none", "fp16", "bf16", "int8", "topk", "sketch"]
_OPTIONS_OF_KIND: dict[str, tuple[str, ...]] = {
    "none": (),
    "fp16": (),
    "bf16": (),
    "int8": ("block",),
    "topk": ("ratio", "k", "dtype"),
    "sketch": ("width", "dtype"),
}
_DTYPES_OF_KIND = {"topk": ("fp32", "fp16"), "sketch": ("fp32", "fp16", "int8", "sign")}


class CompressionConfig(BaseModel):
    """How a pair difference travels to the rank that balances it.  An option that is not given has the kind's own default.

    In YAML a kind alone may stand for the whole section: ``compression: topk``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: CompressionKind = "sketch"
    """``none``: the dense fp32 difference, 4 bytes a parameter; ``fp16`` ``bf16`` ``int8``: the same in fewer bits; ``topk``: its
    largest values with their places; ``sketch``: a linear sketch of fixed width, whatever the model's size."""

    width: int | None = Field(default=None, ge=1, le=2**24)
    """``sketch``: values of the sketch."""

    dtype: Literal["fp32", "fp16", "int8", "sign"] | None = None
    """``sketch`` and ``topk``: how a value travels."""

    ratio: float | None = Field(default=None, gt=0, le=1)
    """``topk``: the share of the values that travels."""

    k: int | None = Field(default=None, ge=1)
    """``topk``: their number, instead of ``ratio``."""

    block: int | None = Field(default=None, ge=1, le=2**20)
    """``int8``: values that share a scale."""

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _options_fit(self) -> CompressionConfig:
        valid = _OPTIONS_OF_KIND[self.kind]
        foreign = [name for name in self.options() if name not in valid]
        if foreign:
            raise ValueError(
                f"compression kind '{self.kind}' has no option {', '.join(foreign)}; it takes {', '.join(valid) or 'none'}"
            )
        if self.ratio is not None and self.k is not None:
            raise ValueError("give either ratio or k, not both")
        if self.dtype is not None and self.dtype not in _DTYPES_OF_KIND[self.kind]:
            raise ValueError(
                f"compression kind '{self.kind}' has no dtype '{self.dtype}'; valid are {', '.join(_DTYPES_OF_KIND[self.kind])}"
            )
        return self

    def options(self) -> dict[str, Any]:
        """The options that were given, for `hvdgrab.compression.build_compressor`."""
        given = {name: getattr(self, name) for name in ("width", "dtype", "ratio", "k", "block")}
        return {name: value for name, value in given.items() if value is not None}


class BalanceConfig(BaseModel):
    """How pair differences are balanced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    backend: Literal["auto", "reference", "numba", "torch", "triton"] = "auto"
    """What computes the signs; ``auto`` chooses by device, width and number of vectors, and says what it chose.  A backend that
    is asked for by name is never replaced."""

    sign_rule: Literal["greedy", "walk", "halving"] = "greedy"
    """``greedy``: the sign that makes the running sum smaller; ``walk``: the self-balancing walk, random with a bias against the
    sum; ``halving``: kernel halving, the same with a threshold that tunes itself."""

    carry_over: bool = False
    """Keep the running sum from epoch to epoch instead of starting each at zero."""

    damping: float = Field(default=1.0, gt=0, le=1)
    """What the running sum is multiplied by before each vector; 1 forgets nothing."""

    precision: Literal["fp32", "fp64"] = "fp32"
    """Of the running sum and the inner products with it."""


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

    pairs_per_message: int | None = Field(default=None, ge=1, le=2**16)
    """Pair differences that travel together; by default as many as fit into 64 KiB, at most 16."""

    designated_rank: int = Field(default=0, ge=0)
    """The rank that balances the pairs of all ranks."""

    compression: CompressionConfig = CompressionConfig()

    balance: BalanceConfig = BalanceConfig()

    layers: tuple[str, ...] | None = None
    """Glob patterns of parameter names: only these parameters' gradients order the data; by default all do."""

    normalise_layers: bool = False
    """Divide each parameter's gradient by its norm first, so that all of them count alike."""

    bound: BoundMode = "sketch"
    """Whether the parallel herding bound is measured: estimated from a sketch, exactly (small models only), or not at all."""

    block_size: int | None = Field(default=None, ge=1)
    """Units in a block of ``block-reversal``; by default the square root of the number of units, rounded up."""

    stall_warning: float = Field(default=30.0, gt=0, allow_inf_nan=False)
    """Seconds after which a rank that waits for the others says for whom."""

    stall_timeout: float = Field(default=1800.0, gt=0, allow_inf_nan=False)
    """Seconds after which that wait ends the job."""

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

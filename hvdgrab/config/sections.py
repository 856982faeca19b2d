"""The sections inside the settings: how differences travel, how they are balanced, how often, and over what."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    kind: CompressionKind = "sketch"
    """``none``: the dense fp32 difference, 4 bytes a parameter; ``fp16`` ``bf16`` ``int8``: the same in fewer bits; ``topk``: its
    largest values with their places; ``sketch``: a linear sketch of fixed width, whatever the model's size."""

    width: int | None = Field(default=None, ge=1, le=2**24)
    """``sketch``: number of its values."""

    dtype: Literal["fp32", "fp16", "int8", "sign"] | None = None
    """``sketch`` and ``topk``: how a value travels."""

    ratio: float | None = Field(default=None, gt=0, le=1)
    """``topk``: share of the values that travel."""

    k: int | None = Field(default=None, ge=1)
    """``topk``: number of the values that travel, instead of ``ratio``."""

    block: int | None = Field(default=None, ge=1, le=2**20)
    """``int8``: number of values that share a scale."""

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

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    backend: Literal["auto", "reference", "numba", "torch", "triton"] = "auto"
    """What computes the signs; ``auto`` chooses by device, width and number of vectors, and says what it chose.  A backend that
    is asked for by name is never replaced."""

    sign_rule: Literal["greedy", "walk", "halving"] = "greedy"
    """``greedy``: the sign that makes the running sum smaller; ``walk``: the self-balancing walk, random with a bias against the
    sum; ``halving``: kernel halving, the same with a threshold that tunes itself."""

    carry_over: bool = False
    """Keep the running sum from epoch to epoch instead of starting each at zero."""

    damping: float = Field(default=1.0, gt=0, le=1)
    """Factor of the running sum before each vector; 1 forgets nothing."""

    precision: Literal["fp32", "fp64"] = "fp32"
    """Precision of the running sum and of the inner products with it."""


_WITHIN_AN_EPOCH = (
    "orders are made once an epoch and are fixed while it runs: an epoch sees every unit exactly once, and the signs of its "
    "pairs mean something only for the order in which all of them came. The most often is every: 1, every epoch"
)


class ReorderConfig(BaseModel):
    """In which epochs the ranks coordinate; in all others each keeps the order it has, and no pair is formed or sent.

    In YAML a number alone may stand for the whole section: ``reorder: 2`` is every second epoch.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    every: int = Field(default=1, ge=1)
    """Distance between the epochs in which the ranks coordinate, counted from ``first``."""

    first: int = Field(default=0, ge=0)
    """The first epoch whose gradients make a new order."""

    last: int | None = Field(default=None, ge=0)
    """The last such epoch; none by default."""

    while_falling: bool = False
    """Rest while the herding bound no longer falls, and go on when the order that was kept has gone stale."""

    @model_validator(mode="before")
    @classmethod
    def _number_alone(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(_WITHIN_AN_EPOCH)
        return {"every": value} if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    @field_validator("every", mode="before")
    @classmethod
    def _whole_epochs(cls, value: Any) -> Any:
        if isinstance(value, str) or (isinstance(value, (int, float)) and value < 1):
            raise ValueError(_WITHIN_AN_EPOCH)
        return value

    @model_validator(mode="after")
    def _some_epoch(self) -> ReorderConfig:
        if self.last is not None and self.last < self.first:
            raise ValueError(f"last is {self.last}, before first, which is {self.first}: no epoch would be coordinated")
        return self


class CommunicationConfig(BaseModel):
    """How payloads travel between the ranks."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    algorithm: Literal["auto", "flat", "hierarchical"] = "auto"
    """``flat``: from rank to rank; ``hierarchical``: within a node through shared memory, between nodes by one rank of each;
    ``auto``: what is faster for the size of a payload."""

    node_size: int | None = Field(default=None, ge=1)
    """Number of consecutive ranks that make a node, if MPI's own view of the nodes is wrong."""

    cuda_aware: bool = False
    """Accepted for older files, without effect: payloads always go through the host."""

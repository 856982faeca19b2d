"""What a job's YAML may say: the validated spec.

Strict throughout: unknown keys are refused, and no value is converted from another type.  `launcher.loader` reads files into this
model and turns pydantic's findings into errors with file, line and path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, model_validator

from hvdgrab.config import GraBConfig
from launcher.environment import check_argument, check_variable_name, check_variable_value
from launcher.paths import NAME_PATTERN, NAME_RULE

LATER_SECTIONS = ("network", "checkpoint", "restart", "variants", "depends_on", "slurm")
"""Sections that have a meaning in a later version of the spec: refused by name instead of with a spelling suggestion."""

Binding = Literal["none", "core", "socket", "numa"]
BackendKind = Literal["auto", "horovodrun", "mpirun", "local"]


def _count_or_auto(largest: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and 1 <= value <= largest):
            return value
        raise ValueError(f"must be a whole number from 1 to {largest}, or auto")

    return check


def _name(value: str) -> str:
    if not re.fullmatch(NAME_PATTERN, value):
        raise ValueError(NAME_RULE)
    return value


Ranks = Annotated[int | Literal["auto"], PlainValidator(_count_or_auto(65_536))]
Threads = Annotated[int | Literal["auto"], PlainValidator(_count_or_auto(4_096))]
Argument = Annotated[str, AfterValidator(check_argument)]
VariableName = Annotated[str, AfterValidator(check_variable_name)]
VariableValue = Annotated[str, AfterValidator(check_variable_value)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Resources(_Section):
    """How many ranks, and what each of them gets."""

    ranks: Ranks = "auto"
    """Processes that train; ``auto``: 4, or 2 where this host has one core only."""

    oversubscribe: bool = False
    """Consent to more ranks than cores: the ranks then take turns, which is right for a trial and wrong for a measurement."""

    allow_root: bool = False
    """Consent to start mpirun or horovodrun as root, which both refuse by default: a runaway job then has no limits."""

    binding: Binding = "none"
    """What a rank is pinned to.  MPI's own default pins a rank to one core, and torch's threads then share it."""

    threads_per_rank: Threads = "auto"
    """OMP_NUM_THREADS of every rank; ``auto``: cores // ranks, at least 1."""


class BackendSettings(_Section):
    """Which program starts the ranks."""

    kind: BackendKind = "auto"
    """``auto``: local for one rank; horovodrun where it is installed and drives the MPI at hand; else mpirun."""

    extra_args: list[Argument] = []
    """Further options for mpirun (through horovodrun's --mpi-args where that starts the ranks), one list item an argument."""


class Spec(_Section):
    """A job, as its YAML describes it."""

    version: Literal[1] = 1
    """Version of this format."""

    name: Annotated[str, AfterValidator(_name)]
    """First part of the job's id; by default the file's name without its ending."""

    command: list[Argument] = Field(min_length=1)
    """What every rank runs: a list of arguments, or one string that is split as a shell would, without any expansion."""

    workdir: str | None = None
    """Directory in which the ranks run; by default the one in which the command was given.  ``~`` at its start is the home."""

    env: dict[VariableName, VariableValue] = {}
    """Environment variables of the ranks, taken literally."""

    secrets: list[VariableName] = []
    """Names of variables of the submitter's environment that the ranks get; their values are written nowhere."""

    resources: Resources = Resources()
    """Ranks, threads, binding and consents."""

    backend: BackendSettings = BackendSettings()
    """What starts the ranks."""

    grab: GraBConfig = GraBConfig()
    """The ordering; reaches `hvdgrab.GraBConfig` in every rank."""

    @model_validator(mode="after")
    def _cross_checks(self) -> Spec:
        both = sorted(set(self.env) & set(self.secrets))
        if both:
            names = ", ".join(both)
            raise ValueError(f"{names} is under env and under secrets: keep it under secrets, where values are not written")
        if "OMP_NUM_THREADS" in self.env and self.resources.threads_per_rank != "auto":
            raise ValueError("env.OMP_NUM_THREADS and resources.threads_per_rank set the same thing: remove one of the two")
        return self

    def frozen_copy(self) -> dict[str, Any]:
        """Plain data from which the same spec can be loaded again; `grab` holds only what the user set."""
        data = self.model_dump(mode="json", exclude={"grab"})
        grab = self.grab.model_dump(mode="json", exclude_unset=True)
        return {**data, "grab": grab} if grab else data

"""What a job's YAML may say: the validated spec.

Strict throughout: unknown keys are refused, and no value is converted from another type.  `launcher.spec.loader` reads files into
this model and turns pydantic's findings into errors with file, line and path; the sections are in `launcher.spec.sections`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from hvdgrab.config import GraBConfig
from launcher.errors import PlanError, Problem
from launcher.spec.fields import Argument, JobReference, Name, OneOrMore, VariableName, VariableValue, Whole, at_key
from launcher.spec.sections import (
    BackendSettings,
    CheckpointSettings,
    NetworkSettings,
    Resources,
    RestartSettings,
    Section,
    SlurmSettings,
)
from launcher.spec.variant_names import check_variants, flatten


@dataclass(frozen=True)
class Places:
    """Where the settings of a spec stand; two of them always compare equal, so that specs compare by what they say."""

    source: str = field(default="", compare=False)
    """The file."""
    of: Mapping[str, tuple[str, int | None]] = field(default_factory=dict, compare=False)
    """File or option and line of every setting, by its dotted path."""

    def find(self, path: str) -> tuple[str, int | None]:
        """Where a setting stands, or the nearest section around it that the document holds."""
        if path in self.of:
            return self.of[path]
        while path and self.of.get(path, ("", None))[0] != self.source:
            path = path.rpartition(".")[0]
        return self.of.get(path, (self.source, None))


class Spec(Section):
    """A job, as its YAML describes it."""

    version: Annotated[Literal[1], Whole] = 1
    """Version of this format."""

    name: Name
    """First part of the job's id; by default the file's name without its ending."""

    command: list[Argument] = Field(min_length=1)
    """What every rank runs: a list of arguments, or one string that is split as a shell would, without any expansion."""

    workdir: str | None = None
    """Directory in which the ranks run; by default the one in which the command was given.  ``~`` at its start is the home."""

    env: dict[VariableName, VariableValue] = Field(default={})
    """Environment variables of the ranks, taken literally."""

    secrets: list[VariableName] = Field(default=[])
    """Names of variables of the submitter's environment that the ranks get; their values are written nowhere."""

    resources: Resources = Resources.model_construct()
    """Ranks, hosts, threads, binding, limits and consents."""

    backend: BackendSettings = BackendSettings.model_construct()
    """What starts the ranks."""

    network: NetworkSettings = NetworkSettings.model_construct()
    """Over which wires the ranks talk."""

    grab: GraBConfig = GraBConfig.model_construct()
    """The ordering; reaches `hvdgrab.GraBConfig` in every rank."""

    checkpoint: CheckpointSettings = CheckpointSettings.model_construct()
    """How the training is told to save itself, and how it says that it is done."""

    restart: RestartSettings = RestartSettings.model_construct()
    """How often the job is started again, by the cause of its end."""

    priority: int = Field(default=0, ge=-1_000, le=1_000)
    """Jobs with a higher one are started first."""

    depends_on: Annotated[list[JobReference], OneOrMore] = Field(default=[], max_length=256)
    """Jobs, by name or id, that must have succeeded before this one starts."""

    group: JobReference | None = None
    """Jobs of one group are shown, cancelled and compared as one; variants set it."""

    variants: Annotated[dict[str, list[Any]], BeforeValidator(flatten), AfterValidator(check_variants)] = Field(default={})
    """Values to be tried, by dotted path of the setting; every combination becomes a job of its own."""

    slurm: SlurmSettings | None = None
    """What SLURM is asked for."""

    _places: Places = PrivateAttr(default_factory=Places)

    @model_validator(mode="before")
    @classmethod
    def _server_orders(cls, value: Any) -> Any:
        """A server rank implies its coordinator, where the user leaves that open."""
        if not isinstance(value, dict):
            return value
        resources, grab = value.get("resources"), value.get("grab", {})
        wanted = isinstance(resources, dict) and resources.get("server_ranks") == 1 and isinstance(grab, dict)
        return {**value, "grab": {"coordinator": "server", **grab}} if wanted else value

    @model_validator(mode="after")
    def _cross_checks(self) -> Spec:
        both = sorted(set(self.env) & set(self.secrets))
        if both:
            names = ", ".join(both)
            raise at_key("env", f"{names} is under env and under secrets: keep it under secrets, where values are not written")
        if "OMP_NUM_THREADS" in self.env and self.resources.threads_per_rank != "auto":
            raise at_key("env.OMP_NUM_THREADS", "resources.threads_per_rank sets the same thing: remove one of the two")
        if self.grab.coordinator == "server" and self.resources.server_ranks == 0:
            raise at_key("grab.coordinator", "'server' needs a process that does not train: add `resources.server_ranks: 1`")
        if self.grab.coordinator != "server" and self.resources.server_ranks == 1:
            raise at_key("resources.server_ranks", f"is for grab.coordinator 'server', not '{self.grab.coordinator}'")
        twice = sorted(set(self.network.horovod) & set(self.env))
        if twice:
            raise at_key("env", f"{', '.join(twice)} is under env and under network.horovod: remove one of the two")
        return self

    def located(self, places: Places) -> Spec:
        """The same spec, which knows where its settings stand."""
        copy = self.model_copy()
        copy._places = places
        return copy

    def problem(self, path: str, message: str) -> Problem:
        """A fault of one setting, with file and line where they are known."""
        source, line = self._places.find(path)
        return Problem(source, line, path, message)

    def refuse(self, path: str, message: str) -> PlanError:
        """The error to raise where one setting cannot work here."""
        return PlanError([self.problem(path, message)])

    def frozen_copy(self) -> dict[str, Any]:
        """Plain data from which the same spec can be loaded again; `grab` holds only what the user set."""
        data = self.model_dump(mode="json", exclude={"grab"}, exclude_none=True)
        grab = self.grab.model_dump(mode="json", exclude_unset=True)
        return {**data, "grab": grab} if grab else data

    def frozen_text(self) -> str:
        """`frozen_copy` as YAML.  ASCII only: other characters are escapes."""
        return yaml.safe_dump(self.frozen_copy(), sort_keys=False, allow_unicode=False, width=4096, default_flow_style=False)

    @property
    def sha256(self) -> str:
        """Digest of `frozen_text`: equal for jobs whose resolved settings are equal."""
        return hashlib.sha256(self.frozen_text().encode("ascii")).hexdigest()

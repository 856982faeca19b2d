"""What a job's YAML may say: the validated spec and its sections.

Strict throughout: unknown keys are refused, and no value is converted from another type.  `launcher.spec.loader` reads files into
this model and turns pydantic's findings into errors with file, line and path.  Durations are seconds and sizes bytes here.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic.fields import FieldInfo

from hvdgrab.config import GraBConfig
from launcher.errors import PlanError, Problem
from launcher.spec.fields import (
    Argument,
    Budget,
    HorovodName,
    HostItem,
    JobReference,
    Lines,
    Name,
    NodeList,
    OneOrMore,
    Option,
    Ranks,
    SignalName,
    Threads,
    VariableName,
    VariableValue,
    Verbatim,
    Whole,
    Word,
    WordList,
    at_key,
    check_variants,
    flatten,
    once_each,
)
from launcher.spec.quantities import Duration, Size

Binding = Literal["none", "core", "socket", "numa"]
BackendKind = Literal["auto", "local", "mpirun", "horovodrun", "slurm"]


class Section(BaseModel):
    """Strict: no unknown key, no value converted from another type, nothing changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


class SshSettings(Section):
    """How the hosts are reached.  Never a password: keys and agents are ssh's own business."""

    user: Word | None = None
    """Name of the user there; by default as ssh's own configuration says."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Port of the ssh server; by default as ssh's own configuration says."""
    identity: Argument | None = None
    """File of the private key."""
    options: Annotated[list[Argument], OneOrMore] = []
    """``-o`` options, such as ``StrictHostKeyChecking=yes``."""


class Resources(Section):
    """How many ranks, and what each of them gets."""

    ranks: Ranks = "auto"
    """Processes that train; ``auto``: the slots of the hosts if given, else 4, or 2 if this host has one core only."""

    oversubscribe: bool = False
    """Consent to more ranks than cores: the ranks then take turns, which is right for a trial and wrong for a measurement."""

    allow_root: bool = False
    """Consent to start mpirun or horovodrun as root, which both refuse by default: a runaway job then has no limits."""

    binding: Binding = "none"
    """What a rank is pinned to.  MPI's own default pins a rank to one core, and torch's threads then share it."""

    threads_per_rank: Threads = "auto"
    """OMP_NUM_THREADS of every rank; ``auto``: cores // ranks, at least 1."""

    gpus_per_rank: int | None = Field(default=None, ge=0, le=64)
    """GPUs of each rank that a scheduler is asked for."""

    time_limit: Annotated[Duration, Field(gt=0)] | None = None
    """End an attempt after this long, by the job's own clock."""

    hosts: Annotated[list[HostItem], OneOrMore] = Field(default=[], max_length=4_096)
    """Hosts that are reached by ssh, each as ``name`` or ``name:slots``; node lists such as ``n[1-3]:4`` are expanded."""

    hostfile: Argument | None = None
    """File with one host a line, instead of ``hosts``; read when the job is submitted."""

    ssh: SshSettings = SshSettings.model_construct()
    """How the hosts are reached."""

    server_ranks: Annotated[Literal[0, 1], Whole] = 0
    """1 adds a last rank that does not train but orders for all others (``python -m hvdgrab.server``)."""

    @model_validator(mode="after")
    def _one_source_of_hosts(self) -> Resources:
        if self.hosts and self.hostfile is not None:
            raise at_key("hostfile", "hosts say too where the job runs: remove one of the two")
        return self


class BackendSettings(Section):
    """Which program starts the ranks."""

    kind: BackendKind = "auto"
    """``auto``: local for one rank, srun or mpirun inside an allocation of SLURM, else mpirun.  Never horovodrun, which would
    call the same mpirun a second later."""

    extra_args: Annotated[list[Argument], Verbatim] = []
    """Further options for mpirun, one list item an argument; horovodrun gets them as --mpi-args."""

    mpirun: Argument | None = None
    """Path of the mpirun to use; by default the first on PATH, then the one beside the interpreter."""


class NetworkSettings(Section):
    """Over which wires the ranks talk; see `launcher.plan.mpi` for what becomes of it."""

    interface: WordList | None = None
    """Interfaces or subnets for TCP: ``eth0`` or ``10.1.0.0/16``."""
    ucx_devices: WordList | None = None
    """InfiniBand and RoCE devices: ``mlx5_0:1``."""
    ucx_transports: WordList | None = None
    """UCX transports: ``rc,sm,self``."""
    nccl_ib_disable: bool | None = None
    """NCCL_IB_DISABLE: true keeps NCCL off InfiniBand and RoCE."""
    nccl_socket_ifname: WordList | None = None
    """NCCL_SOCKET_IFNAME: the interfaces that NCCL uses for TCP."""
    nccl_debug: Literal["VERSION", "WARN", "INFO", "TRACE"] | None = None
    """NCCL_DEBUG: how much NCCL prints."""
    horovod: Annotated[dict[HorovodName, VariableValue], BeforeValidator(once_each)] = {}
    """Horovod's own variables, with or without ``HOROVOD_`` in front."""


class CheckpointSettings(Section):
    """How the training is told to save itself, and how it says that it is done."""

    signal: SignalName | None = None
    """Signal that asks the ranks for a checkpoint before they are ended."""
    before_limit: Duration = 120.0
    """How long before the time limit the signal is sent."""
    require_finished: bool = False
    """Let the job succeed only if the training has marked itself as finished (``hvdgrab.mark_finished``)."""


class RestartSettings(Section):
    """How often a job is started again, by the cause of its end, and how long it waits.  Budgets are counts or ``unlimited``."""

    failure: Budget = 0
    """Restarts after the training failed."""
    hang: Budget = 0
    """Restarts after an attempt made no progress for ``hang_after``."""
    lost_node: Budget = 0
    """Restarts after a node was lost."""
    preemption: Budget = "unlimited"
    """Restarts after the scheduler preempted the job."""
    time_limit: Budget = 0
    """Restarts after an attempt reached its time limit."""
    hang_after: Annotated[Duration, Field(gt=0)] | None = None
    """An attempt hangs if the training makes no progress for this long; null: it never hangs."""
    backoff: Duration = 10.0
    """Wait before the first restart."""
    backoff_factor: float = Field(default=2.0, ge=1, le=100, allow_inf_nan=False)
    """Factor by which each further wait is longer."""
    backoff_most: Duration = 600.0
    """The longest wait."""
    jitter: float = Field(default=0.2, ge=0, le=1, allow_inf_nan=False)
    """Share by which a wait varies at random, so that many jobs do not return at once."""
    permanent_exit_codes: list[Annotated[int, Field(ge=0, le=255)]] = [2]
    """Exit codes after which the job is not restarted."""
    exclude_node_for: Duration = 1_800.0
    """How long a host that was lost or failed fast is left out."""
    fast_failure: Duration = 60.0
    """An attempt that fails sooner than this has failed fast."""
    no_progress: Budget = 3
    """Attempts in a row without progress after which the job is given up."""
    min_ranks: int | None = Field(default=None, ge=1, le=65_536)
    """Fewest ranks to start with if hosts are missing; null: always all ranks."""

    @model_validator(mode="after")
    def _fit_together(self) -> RestartSettings:
        if self.hang != 0 and self.hang_after is None:
            raise at_key("hang", "needs restart.hang_after, which says when an attempt counts as hanging: add e.g. 30m")
        if self.backoff > self.backoff_most:
            raise at_key("backoff", "is longer than backoff_most: raise that too")
        return self


class SlurmSettings(Section):
    """What SLURM is asked for; only used by ``backend.kind: slurm``."""

    partition: Word | None = None
    """Partition; by default the site's."""
    account: Word | None = None
    """Account that is charged; by default the user's own."""
    qos: Word | None = None
    """Quality of service."""
    constraint: Word | None = None
    """Features that the nodes must have."""
    reservation: Word | None = None
    """Reservation in which the job runs."""
    nodes: int | None = Field(default=None, ge=1, le=65_536)
    """Number of nodes; by default as many as SLURM needs for the ranks."""
    ranks_per_node: int | None = Field(default=None, ge=1, le=4_096)
    """Ranks of each node; by default ``nodes`` share the ranks evenly."""
    gpus_per_node: int | None = Field(default=None, ge=0, le=256)
    """GPUs of each node; ``resources.gpus_per_rank`` asks by the rank instead."""
    memory: Size | None = None
    """Memory of a node."""
    mpi: Word = "auto"
    """What ``srun --mpi=`` gets; ``auto``: found at run time."""
    exclude: NodeList | None = None
    """Nodes that are not used."""
    clusters: WordList | None = None
    """Clusters that may run the job: the one that can start it first gets it."""
    requeue: bool = True
    """Let SLURM put the job back into its queue; the job then restarts itself, by ``restart``."""
    extra: list[Option] = []
    """Further options of sbatch."""
    prologue: Lines = []
    """Lines of shell that run before the ranks, such as ``module load openmpi``."""


@dataclass(frozen=True)
class Places:
    """Where the settings of a spec stand; two of them always compare equal, so that specs compare by what they say."""

    source: str = field(default="", compare=False)
    """The file."""
    of: Mapping[str, tuple[str, int | None]] = field(default_factory=dict, compare=False)
    """File or option and line of every setting, by its dotted path."""

    def find(self, path: str) -> tuple[str, int | None]:
        """Find where a setting, or the nearest section around it that the document holds, stands."""
        if path in self.of:
            return self.of[path]
        while path and self.of.get(path, ("", None))[0] != self.source:
            path = path.rpartition(".")[0]
        return self.of.get(path, (self.source, None))


class Spec(Section):
    """A job, as its YAML describes it."""

    version: Annotated[Literal[1], Whole] = 1
    """Version of this format."""

    name: Annotated[Name, Verbatim]
    """First part of the job's id; by default the file's name without its ending."""

    command: Annotated[list[Argument], Verbatim] = Field(min_length=1)
    """What every rank runs: a list of arguments, or one string that is split as a shell would, without any expansion."""

    workdir: Annotated[str | None, Verbatim] = None
    """Directory in which the ranks run; by default the one in which the command was given.  ``~`` at its start is the home."""

    env: Annotated[dict[VariableName, VariableValue], Verbatim] = Field(default={})
    """Environment variables of the ranks, taken literally."""

    secrets: Annotated[list[VariableName], Verbatim] = Field(default=[])
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
        """Let a server rank imply its coordinator, if the user leaves that open."""
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
        """Return the same spec, which knows where its settings stand."""
        copy = self.model_copy()
        copy._places = places
        return copy

    def problem(self, path: str, message: str) -> Problem:
        """Describe a fault of one setting, with file and line if they are known."""
        source, line = self._places.find(path)
        return Problem(source, line, path, message)

    def refuse(self, path: str, message: str) -> PlanError:
        """Make the error to raise if one setting cannot work here."""
        return PlanError([self.problem(path, message)])

    def frozen_copy(self) -> dict[str, Any]:
        """Dump plain data from which the same spec can be loaded again; `grab` holds only what the user set."""
        data = self.model_dump(mode="json", exclude={"grab"}, exclude_none=True)
        grab = self.grab.model_dump(mode="json", exclude_unset=True)
        return {**data, "grab": grab} if grab else data

    def frozen_text(self) -> str:
        """Dump `frozen_copy` as YAML.  ASCII only: other characters are escapes."""
        return yaml.safe_dump(self.frozen_copy(), sort_keys=False, allow_unicode=False, width=4096, default_flow_style=False)

    @property
    def sha256(self) -> str:
        """Digest of `frozen_text`: equal for jobs whose resolved settings are equal."""
        return hashlib.sha256(self.frozen_text().encode("ascii")).hexdigest()


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Find a section's model, also in the union with None of a section that may be left out; None if there is no model."""
    kinds = (annotation, *get_args(annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def settings(model: type[BaseModel] = Spec, path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all settings below a model that hold no further ones, by dotted path."""
    for name, info in model.model_fields.items():
        section = model_in(info.annotation)
        if section is None:
            yield path + name, info
        else:
            yield from settings(section, f"{path}{name}.")


@functools.cache
def text_settings() -> Mapping[str, bool]:
    """Collect the settings that hold text, or lists or mappings of text, and whether they may be null (see `Verbatim`)."""
    return {path: Verbatim not in info.metadata for path, info in settings() if _holds_text(info.annotation)}


def _holds_text(annotation: Any) -> bool:
    if annotation is str:
        return True
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return _holds_text(inner[1])
    return origin is not Literal and any(_holds_text(kind) for kind in inner)

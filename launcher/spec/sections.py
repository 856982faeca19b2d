"""The sections of a job's YAML below its first level.  Durations are seconds and sizes bytes once they are here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from launcher.spec.fields import (
    Argument,
    Budget,
    HorovodName,
    HostItem,
    Lines,
    NodeList,
    OneOrMore,
    Option,
    Ranks,
    SignalName,
    Threads,
    VariableValue,
    Whole,
    Word,
    WordList,
    at_key,
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
    """Processes that train; ``auto``: the slots of the hosts where given, else 4, or 2 where this host has one core only."""

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

    extra_args: list[Argument] = []
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

    def plain(self) -> dict[str, Any]:
        """The settings as plain data: durations in seconds, budgets as numbers or ``unlimited``."""
        return self.model_dump()


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

    def plain(self) -> dict[str, Any]:
        """The settings as plain data, memory in bytes."""
        return self.model_dump()

"""How the MPIs' mpirun differ: as data.

Sources: ``man mpirun`` of Open MPI 4.1 and 5.0, ``mpiexec -help`` of MPICH (hydra) and Intel MPI 2021.  Every
binding was run, with and without oversubscription, on Open MPI 4.1.8, 5.0.8 and MPICH 5.0.2; Intel MPI was not at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.errors import PlanError


@dataclass(frozen=True)
class Flags:
    """The options of one mpirun."""

    binding: dict[str, tuple[str, ...]]
    """Options for each value of ``resources.binding``, always passed."""
    overloaded_binding: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The same where there are more ranks than cores; bindings that are missing here are as above."""
    here: tuple[str, ...] = ()
    """Names this host with as many slots as ranks; ``{ranks}`` is replaced."""
    host_list: tuple[str, ...] = ("-hosts", "{hosts}")
    """Names the hosts with their slots; ``{hosts}`` is replaced by ``node1:2,node2:2``."""
    remote_shell: tuple[str, ...] = ("-launcher", "ssh", "-launcher-exec", "{shell}")
    """Names the program by which hosts are reached; ``{shell}`` is replaced."""
    splits_shell: bool = False
    """Whether that program's path is split at blanks."""
    export: str = ""
    """Stands before each name of a variable that travels to other hosts; '' where all do."""
    root: tuple[str, ...] = ()
    """Consent to run as root, where mpirun asks for it."""
    oversubscribe: tuple[str, ...] = ()
    """Consent to more ranks than slots."""
    oversubscribed_environment: dict[str, str] = field(default_factory=dict)
    """Variables for ranks that share cores: a rank that waits must let others run."""
    horovodrun: bool = False
    """Whether horovodrun 0.28.1 can drive it."""


_OPENMPI_4 = Flags(
    binding={
        "none": ("--bind-to", "none", "--map-by", "slot"),
        "core": ("--bind-to", "core", "--map-by", "slot:PE={threads}"),
        "socket": ("--bind-to", "socket", "--map-by", "socket"),
        "numa": ("--bind-to", "numa", "--map-by", "numa"),
    },
    overloaded_binding={
        "core": ("--bind-to", "core:overload-allowed", "--map-by", "slot"),
        "socket": ("--bind-to", "socket:overload-allowed", "--map-by", "socket"),
        "numa": ("--bind-to", "numa:overload-allowed", "--map-by", "numa"),
    },
    here=("-H", "localhost:{ranks}"),
    host_list=("-H", "{hosts}"),
    remote_shell=("--mca", "plm_rsh_agent", "{shell}"),
    splits_shell=True,
    export="-x",
    root=("--allow-run-as-root",),
    oversubscribe=("--oversubscribe",),
    oversubscribed_environment={"OMPI_MCA_mpi_yield_when_idle": "1"},
    horovodrun=True,
)

_OPENMPI_5 = Flags(
    binding=_OPENMPI_4.binding,
    overloaded_binding={
        "none": ("--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE"),
        "core": ("--bind-to", "core:overload-allowed", "--map-by", "slot:OVERSUBSCRIBE"),
        "socket": ("--bind-to", "package:overload-allowed", "--map-by", "package:OVERSUBSCRIBE"),
        "numa": ("--bind-to", "numa:overload-allowed", "--map-by", "numa:OVERSUBSCRIBE"),
    },
    here=("--host", "localhost:{ranks}"),
    host_list=("--host", "{hosts}"),
    remote_shell=("--prtemca", "plm_ssh_agent", "{shell}"),
    splits_shell=True,
    export="-x",
    root=("--allow-run-as-root",),
    oversubscribed_environment={"OMPI_MCA_mpi_yield_when_idle": "1"},
)

_MPICH = Flags(
    binding={
        "none": ("-bind-to", "none"),
        "core": ("-bind-to", "core:{threads}"),
        "socket": ("-bind-to", "socket"),
        "numa": ("-bind-to", "numa"),
    },
)

_INTEL = Flags(
    binding={
        "none": ("-genv", "I_MPI_PIN", "0"),
        "core": ("-genv", "I_MPI_PIN", "1", "-genv", "I_MPI_PIN_DOMAIN", "{threads}"),
        "socket": ("-genv", "I_MPI_PIN", "1", "-genv", "I_MPI_PIN_DOMAIN", "socket"),
        "numa": ("-genv", "I_MPI_PIN", "1", "-genv", "I_MPI_PIN_DOMAIN", "numa"),
    },
)

FLAGS = {("openmpi", 4): _OPENMPI_4, ("openmpi", 5): _OPENMPI_5, ("mpich", 4): _MPICH, ("intel", 2021): _INTEL}
"""By flavour and the first major version from which the options hold, up to the next entry of that flavour."""


def flags_for(flavour: str, version: tuple[int, ...]) -> Flags:
    """The options of an mpirun.

    Raises:
        PlanError: for an mpirun that is not one of those above.
    """
    known = sorted(major for name, major in FLAGS if name == flavour)
    if not known or not version:
        raise PlanError("the mpirun at hand is none of Open MPI, MPICH, Intel MPI; `hvdgrab-launch doctor` shows what it answers")
    fitting = [major for major in known if major <= version[0]] or known[:1]
    return FLAGS[flavour, fitting[-1]]

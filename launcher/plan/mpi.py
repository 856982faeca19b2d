"""All that is known of the MPIs: how they are recognised, their mpirun's options, and how they are told which wires to use.

Sources: ``man mpirun`` of Open MPI 4.1 and 5.0, ``mpiexec -help`` of MPICH (hydra) and Intel MPI 2021.  Every binding was run,
with and without oversubscription, on Open MPI 4.1.8, 5.0.8 and MPICH 5.0.2; Intel MPI was not at hand.  For the wires:
``ompi_info --all`` of Open MPI 4.1.8 and 5.0.8 (in 5 the out-of-band wires belong to PRRTE, which has ``--prtemca`` and calls the
option ``prte_if_include``), ``mpiexec -iface`` of MPICH's hydra and libfabric's fi_tcp(7), UCX's ``ucx_info -f``, NCCL's list of
environment variables, Horovod 0.28's ``runner/common/util/config_parser.py``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from launcher.errors import PlanError
from launcher.host.program import run

if TYPE_CHECKING:
    from launcher.spec.model import NetworkSettings  # supervisors need this module and no pydantic

Flavour = Literal["openmpi", "mpich", "intel", "unknown"]
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}
"""What people call the flavours."""
PROBE_SECONDS = 20.0
_MPIRUN_BANNERS: dict[Flavour, str] = {
    "openmpi": r"(?:Open MPI\)|OpenRTE\))\s+v?(\d+(?:\.\d+)*)",
    "intel": r"Intel\(R\) MPI.*?Version\s+(\d+(?:\.\d+)*)",
    "mpich": r"(?:HYDRA|MPICH).*?Version:?\s+(\d+(?:\.\d+)*)",
}
"""What ``mpirun --version`` prints."""
_LIBRARY_BANNERS: dict[Flavour, str] = {
    "openmpi": r"Open MPI v(\d+(?:\.\d+)*)",
    "intel": r"Intel\(R\) MPI Library (\d+(?:\.\d+)*)",
    "mpich": r"MPICH Version:?\s+(\d+(?:\.\d+)*)",
}
"""What ``MPI_Get_library_version`` returns."""


def label(flavour: str, version: tuple[int, ...]) -> str:
    """Name and version, for people."""
    return f"{NAMES.get(flavour, 'unknown MPI')} {'.'.join(map(str, version))}".strip()


def parse_version(text: str) -> tuple[Flavour, tuple[int, ...]]:
    """Read flavour and version from what ``mpirun --version`` prints; ``("unknown", ())`` if it is none of the known ones."""
    return _parse(_MPIRUN_BANNERS, text)


def parse_library(text: str) -> tuple[Flavour, tuple[int, ...]]:
    """Do the same for what ``MPI_Get_library_version`` returns."""
    return _parse(_LIBRARY_BANNERS, text)


def _parse(patterns: Mapping[Flavour, str], text: str) -> tuple[Flavour, tuple[int, ...]]:
    for flavour, pattern in patterns.items():
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return flavour, tuple(int(part) for part in found.group(1).split("."))
    return "unknown", ()


@dataclass(frozen=True)
class Mpirun:
    """An mpirun that was found and asked for its version."""

    path: str
    flavour: Flavour
    version: tuple[int, ...]
    banner: str
    """First line of what ``mpirun --version`` said, or why it said nothing."""

    @property
    def label(self) -> str:
        """Name and version, for people."""
        return label(self.flavour, self.version)


def probe_mpirun(path: str) -> Mpirun:
    """Ask an mpirun for its version; a tool that hangs, fails or prints garbage is ``unknown``, with the reason as its banner."""
    answer = run([path, "--version"], environment=without_foreign_prefix(path, os.environ), seconds=PROBE_SECONDS)
    if answer.code is None:
        return Mpirun(path, "unknown", (), f"--version: {answer.stderr}")
    text = (answer.stdout + answer.stderr)[:20_000]
    if not answer.ok:
        return Mpirun(path, "unknown", (), f"--version ended with {answer.code}: {_first_line(text)}")
    return Mpirun(path, *parse_version(text), _first_line(text))


def without_foreign_prefix(mpirun: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables under which an mpirun finds itself: this interpreter's environment says to every process where its own Open
    MPI lies (OPAL_PREFIX), which would mislead another one."""
    own = environment.get("OPAL_PREFIX") == sys.prefix and not Path(mpirun).is_relative_to(sys.prefix)
    return {name: value for name, value in environment.items() if not (own and name == "OPAL_PREFIX")}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing was printed")[:200]


@dataclass(frozen=True)
class Options:
    """The options of one mpirun, and what it can do."""

    binding: dict[str, tuple[str, ...]]
    """Options for each value of ``resources.binding``, always passed."""
    overloaded_binding: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The same if there are more ranks than cores; bindings that are missing here are as above."""
    here: tuple[str, ...] = ()
    """Names this host with as many slots as ranks; ``{ranks}`` is replaced."""
    host_list: tuple[str, ...] = ("-hosts", "{hosts}")
    """Names the hosts with their slots; ``{hosts}`` is replaced by ``node1:2,node2:2``."""
    remote_shell: tuple[str, ...] = ("-launcher", "ssh", "-launcher-exec", "{shell}")
    """Names the program by which hosts are reached; ``{shell}`` is replaced."""
    splits_shell: bool = False
    """Whether that program's path is split at blanks."""
    export: str = ""
    """Stands before each name of a variable that travels to other hosts; '' if all do."""
    root: tuple[str, ...] = ()
    """Consent to run as root, if mpirun asks for it."""
    oversubscribe: tuple[str, ...] = ()
    """Consent to more ranks than slots."""
    oversubscribed_environment: dict[str, str] = field(default_factory=dict)
    """Variables for ranks that share cores: a rank that waits must let others run."""
    horovodrun: bool = False
    """Whether horovodrun 0.28.1 can drive it."""
    interface_args: tuple[str, ...] = ()
    """Options that name the interface for TCP; ``{interface}`` is replaced."""
    interface_environment: dict[str, str] = field(default_factory=dict)
    """Variables that do the same."""
    ucx_args: tuple[str, ...] = ()
    """Options that make it use UCX at all."""
    subnets: bool = False
    """Whether an interface may be given as a subnet."""
    several: bool = True
    """Whether several interfaces may be given."""

    def bind(self, binding: str, ranks: int, threads: int, *, crowded: bool) -> tuple[str, ...]:
        """Options for a value of ``resources.binding``.

        Args:
            binding: the value.
            ranks: how many there are.
            threads: of each.
            crowded: whether ranks share cores.
        """
        table = self.binding | self.overloaded_binding if crowded else self.binding
        return tuple(option.format(threads=threads, ranks=ranks) for option in table[binding])


_OPENMPI_4 = Options(
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
    interface_args=("--mca", "btl_tcp_if_include", "{interface}", "--mca", "oob_tcp_if_include", "{interface}"),
    ucx_args=("--mca", "pml", "ucx"),
    subnets=True,
)

_OPENMPI_5 = Options(
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
    interface_args=("--mca", "btl_tcp_if_include", "{interface}", "--prtemca", "prte_if_include", "{interface}"),
    ucx_args=("--mca", "pml", "ucx"),
    subnets=True,
)

_MPICH = Options(
    binding={
        "none": ("-bind-to", "none"),
        "core": ("-bind-to", "core:{threads}"),
        "socket": ("-bind-to", "socket"),
        "numa": ("-bind-to", "numa"),
    },
    interface_args=("-iface", "{interface}"),
    interface_environment={"FI_TCP_IFACE": "{interface}", "FI_SOCKETS_IFACE": "{interface}"},
    several=False,
)

_INTEL = Options(
    binding={
        "none": ("-genv", "I_MPI_PIN", "0"),
        "core": ("-genv", "I_MPI_PIN", "1", "-genv", "I_MPI_PIN_DOMAIN", "{threads}"),
        "socket": ("-genv", "I_MPI_PIN", "1", "-genv", "I_MPI_PIN_DOMAIN", "socket"),
        "numa": ("-genv", "I_MPI_PIN", "1", "-genv", "I_MPI_PIN_DOMAIN", "numa"),
    },
    interface_args=("-iface", "{interface}"),
    interface_environment={"FI_TCP_IFACE": "{interface}", "FI_SOCKETS_IFACE": "{interface}"},
    ucx_args=("-genv", "FI_PROVIDER", "mlx"),
    several=False,
)

MPIS = {("openmpi", 4): _OPENMPI_4, ("openmpi", 5): _OPENMPI_5, ("mpich", 4): _MPICH, ("intel", 2021): _INTEL}
"""By flavour and the first major version from which the options hold, up to the next entry of that flavour."""
_NONE = Options(binding={}, subnets=True)
"""No MPI: one local rank, or a launcher whose MPI is only known at run time."""


def find_options(flavour: str, version: tuple[int, ...]) -> Options | None:
    """Find the options of an mpirun; None if it is none of `MPIS`."""
    known = sorted(major for name, major in MPIS if name == flavour)
    if not known or not version:
        return None
    fitting = [major for major in known if major <= version[0]] or known[:1]
    return MPIS[flavour, fitting[-1]]


def options_of(flavour: str, version: tuple[int, ...]) -> Options:
    """Find the options of an mpirun.

    Raises:
        PlanError: if it is none of `MPIS`.
    """
    found = find_options(flavour, version)
    if found is None:
        raise PlanError("the mpirun at hand is none of Open MPI, MPICH, Intel MPI; `hvdgrab-launch doctor` shows what it answers")
    return found


_RANKS = ("-n", "-np", "--n", "--np", "-c")
_HOSTS = ("-H", "-host", "--host", "-hosts", "-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
DECIDED = {
    **dict.fromkeys(_RANKS, "resources.ranks"),
    **dict.fromkeys(_HOSTS, "resources.hosts"),
    **dict.fromkeys(("-bind-to", "--bind-to"), "resources.binding"),
    ":": "the launcher, which starts one program (resources.server_ranks for a second one)",
}
"""Options of mpirun that a spec may not pass by, and the setting that they belong to."""
_OPENMPI, _HYDRA = ("Open MPI",), ("MPICH", "Intel MPI")
FOREIGN = {
    **dict.fromkeys(("--mca", "-mca", "--gmca", "-gmca", "--tune", "-x", "--oversubscribe", "--report-bindings"), _OPENMPI),
    "--prtemca": ("Open MPI 5",),
    **dict.fromkeys(("-genv", "-genvall", "-genvlist", "-env", "-envall", "-iface", "-launcher", "-rmk", "-ppn"), _HYDRA),
}
"""Options that only some MPIs know, and which those are."""


def owners_of_foreign(option: str, mpirun: Mpirun) -> tuple[str, ...]:
    """Name the MPIs that know an option, if this mpirun is of none of them."""
    owners = FOREIGN.get(option, ())
    return () if any(mpirun.label.startswith(owner) for owner in owners) else owners


def network_args(network: NetworkSettings, flavour: str, version: tuple[int, ...]) -> tuple[str, ...]:
    """Make the options of mpirun for the wires that a spec names; none if it names none."""
    mpi = find_options(flavour, version) or _NONE
    args: list[str] = []
    if network.interface is not None:
        args += [option.format(interface=network.interface) for option in mpi.interface_args]
    if network.ucx_devices is not None or network.ucx_transports is not None:
        args += mpi.ucx_args
    return tuple(args)


def network_environment(network: NetworkSettings, backend: str, flavour: str, version: tuple[int, ...]) -> dict[str, str]:
    """Make the ranks' variables for the wires that a spec names; none if it names none.

    Under SLURM the MPI is only known at run time and srun takes no options of it: there every MPI's variables are set.
    """
    tables = list(MPIS.values()) if backend in ("slurm", "srun") else [find_options(flavour, version) or _NONE]
    values: dict[str, str] = {}
    if network.interface is not None:
        for mpi in tables:
            values |= {name: text.format(interface=network.interface) for name, text in mpi.interface_environment.items()}
    if backend in ("slurm", "srun"):
        values |= _openmpi_variables(network)
    if network.nccl_ib_disable is not None:
        values["NCCL_IB_DISABLE"] = str(int(network.nccl_ib_disable))
    named = {
        "UCX_NET_DEVICES": network.ucx_devices,
        "UCX_TLS": network.ucx_transports,
        "NCCL_SOCKET_IFNAME": network.nccl_socket_ifname,
        "NCCL_DEBUG": network.nccl_debug,
    }
    return values | {name: value for name, value in named.items() if value is not None} | network.horovod


def _openmpi_variables(network: NetworkSettings) -> dict[str, str]:
    """Write Open MPI's options as variables, for ranks that no mpirun of ours starts."""
    values = {} if network.interface is None else {"OMPI_MCA_btl_tcp_if_include": network.interface}
    wants_ucx = network.ucx_devices is not None or network.ucx_transports is not None
    return values | ({"OMPI_MCA_pml": "ucx"} if wants_ucx else {})


def network_faults(network: NetworkSettings, mpirun: Mpirun) -> list[tuple[str, str]]:
    """Find what the MPI at hand cannot do of a spec's network: pairs of path and message."""
    mpi, faults = find_options(mpirun.flavour, mpirun.version) or _NONE, []
    interface = network.interface or ""
    if "/" in interface and not mpi.subnets:
        faults.append(("network.interface", f"{mpirun.label} takes the name of an interface, such as eth0, and no subnet"))
    if "," in interface and not mpi.several:
        faults.append(("network.interface", f"{mpirun.label} takes one interface, not several"))
    return faults

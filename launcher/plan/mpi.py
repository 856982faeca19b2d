"""What a spec's ``network`` becomes: variables for every rank, and options for the MPI at hand.  Pure data.

Sources: ``ompi_info --all`` of Open MPI 4.1.8 and 5.0.8 (in 5 the out-of-band wires belong to PRRTE, which has ``--prtemca`` and
calls the option ``prte_if_include``), ``mpiexec -iface`` of MPICH's hydra and libfabric's fi_tcp(7), UCX's ``ucx_info -f``,
NCCL's list of environment variables, Horovod 0.28's ``runner/common/util/config_parser.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.spec.sections import NetworkSettings


@dataclass(frozen=True)
class Wires:
    """How one MPI is told which wires to use.  ``{interface}`` and ``{devices}`` are filled in."""

    interface_args: tuple[str, ...] = ()
    interface_environment: dict[str, str] = field(default_factory=dict)
    ucx_args: tuple[str, ...] = ()
    """Options that make it use UCX at all."""
    subnets: bool = False
    """Whether an interface may be given as a subnet."""
    several: bool = True
    """Whether several interfaces may be given."""
    ucx: bool = True
    """Whether it can use UCX."""


_OPENMPI_4 = Wires(
    interface_args=("--mca", "btl_tcp_if_include", "{interface}", "--mca", "oob_tcp_if_include", "{interface}"),
    ucx_args=("--mca", "pml", "ucx"),
    subnets=True,
)
_OPENMPI_5 = Wires(
    interface_args=("--mca", "btl_tcp_if_include", "{interface}", "--prtemca", "prte_if_include", "{interface}"),
    ucx_args=("--mca", "pml", "ucx"),
    subnets=True,
)
_MPICH = Wires(
    interface_args=("-iface", "{interface}"),
    interface_environment={"FI_TCP_IFACE": "{interface}", "FI_SOCKETS_IFACE": "{interface}"},
    several=False,
)
_INTEL = Wires(
    interface_args=("-iface", "{interface}"),
    interface_environment={"FI_TCP_IFACE": "{interface}", "FI_SOCKETS_IFACE": "{interface}"},
    ucx_args=("-genv", "FI_PROVIDER", "mlx"),
    several=False,
)
_NONE = Wires(subnets=True, ucx=True)
"""No MPI: one local rank, or a launcher whose MPI is only known at run time."""

WIRES = {("openmpi", 4): _OPENMPI_4, ("openmpi", 5): _OPENMPI_5, ("mpich", 4): _MPICH, ("intel", 2021): _INTEL}
"""By flavour and the first major version from which it holds, up to the next entry of that flavour."""


def wires_for(flavour: str, version: tuple[int, ...]) -> Wires:
    """The table of an MPI; an empty one where none is known."""
    known = sorted(major for name, major in WIRES if name == flavour)
    if not known or not version:
        return _NONE
    fitting = [major for major in known if major <= version[0]] or known[:1]
    return WIRES[flavour, fitting[-1]]


def network_args(network: NetworkSettings, flavour: str, version: tuple[int, ...]) -> tuple[str, ...]:
    """Options of mpirun for the wires that a spec names; empty where it names none."""
    wires = wires_for(flavour, version)
    args: list[str] = []
    if network.interface is not None:
        args += [option.format(interface=network.interface) for option in wires.interface_args]
    if network.ucx_devices is not None or network.ucx_transports is not None:
        args += wires.ucx_args
    return tuple(args)


def network_environment(network: NetworkSettings, backend: str, flavour: str, version: tuple[int, ...]) -> dict[str, str]:
    """Variables of the ranks for the wires that a spec names; empty where it names none.

    Under SLURM the MPI is only known at run time and srun takes no options of it: there every MPI's variables are set.
    """
    tables = list(WIRES.values()) if backend in ("slurm", "srun") else [wires_for(flavour, version)]
    values: dict[str, str] = {}
    if network.interface is not None:
        for wires in tables:
            values |= {name: text.format(interface=network.interface) for name, text in wires.interface_environment.items()}
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
    """Open MPI's options as variables, for ranks that no mpirun of ours starts."""
    values = {} if network.interface is None else {"OMPI_MCA_btl_tcp_if_include": network.interface}
    wants_ucx = network.ucx_devices is not None or network.ucx_transports is not None
    return values | ({"OMPI_MCA_pml": "ucx"} if wants_ucx else {})


def network_faults(network: NetworkSettings, flavour: str, version: tuple[int, ...], label: str) -> list[tuple[str, str]]:
    """What of a spec's network the MPI at hand cannot do: pairs of path and message."""
    wires, faults = wires_for(flavour, version), []
    interface = network.interface or ""
    if "/" in interface and not wires.subnets:
        faults.append(("network.interface", f"{label} takes the name of an interface, such as eth0, and no subnet"))
    if "," in interface and not wires.several:
        faults.append(("network.interface", f"{label} takes one interface, not several"))
    return faults

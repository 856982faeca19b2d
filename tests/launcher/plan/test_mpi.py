from __future__ import annotations

import shlex
from typing import Any

import pytest

from launcher.errors import PlanError
from launcher.plan.mpi import MPIS, find_options, network_environment
from tests.launcher.helpers import mpirun, plan, spec

ALL = """\
command: x
backend: {kind: mpirun}
resources: {ranks: 2}
network:
  interface: eth0
  ucx_devices: [mlx5_0:1]
  ucx_transports: [rc, sm]
  nccl_ib_disable: false
  nccl_socket_ifname: ib0
  nccl_debug: INFO
  horovod: {CYCLE_TIME: 0.5}
"""
VARIABLES = {
    "NCCL_IB_DISABLE": "0",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "UCX_TLS": "rc,sm",
    "NCCL_SOCKET_IFNAME": "ib0",
    "NCCL_DEBUG": "INFO",
    "HOROVOD_CYCLE_TIME": "0.5",
}
LIBFABRIC = {"FI_TCP_IFACE": "eth0", "FI_SOCKETS_IFACE": "eth0"}


@pytest.mark.parametrize(
    ("flavour", "version", "args", "variables"),
    [
        ("openmpi", (4, 1, 8), "--mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 --mca pml ucx", {}),
        ("openmpi", (5, 0, 8), "--mca btl_tcp_if_include eth0 --prtemca prte_if_include eth0 --mca pml ucx", {}),
        ("mpich", (5, 0, 2), "-iface eth0", LIBFABRIC),
        ("intel", (2021, 9), "-iface eth0 -genv FI_PROVIDER mlx", LIBFABRIC),
    ],
)
def test_golden_network(flavour: Any, version: tuple[int, ...], args: str, variables: dict[str, str]) -> None:
    made = plan(ALL, mpirun=mpirun(flavour, *version))
    assert shlex.join(made.launch.network_args) == args
    prefixes = ("NCCL", "UCX", "FI_", "HOROVOD_")
    own = {name: value for name, value in made.launch.environment.items() if name.startswith(prefixes)}
    assert own == VARIABLES | variables


def test_the_options_stand_before_the_users_own() -> None:
    made = plan(ALL.replace("kind: mpirun", "kind: mpirun, extra_args: [--mca, btl_tcp_if_include, mine]"))
    assert "--mca pml ucx --mca btl_tcp_if_include mine" in shlex.join(made.argv)


def test_no_network_section_changes_nothing() -> None:
    made = plan()
    assert made.launch.network_args == ()
    assert not [name for name in made.launch.environment if name.startswith(("NCCL", "UCX", "FI_", "HOROVOD_"))]


def test_one_local_rank_gets_the_variables_and_no_options() -> None:
    made = plan(ALL.replace("ranks: 2", "ranks: 1").replace("{kind: mpirun}", "{kind: local}"))
    assert (made.launch.network_args, made.launch.environment["NCCL_DEBUG"]) == ((), "INFO")


def test_under_slurm_every_mpi_finds_its_variables() -> None:
    found = network_environment(spec(ALL).network, "slurm", "", ())
    assert found == VARIABLES | LIBFABRIC | {"OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "ucx"}


@pytest.mark.parametrize(
    ("interface", "message"),
    [("10.1.0.0/16", "takes the name of an interface"), ("[eth0, eth1]", "takes one interface, not several")],
)
def test_what_an_mpi_cannot_do_is_refused(interface: str, message: str) -> None:
    text = ALL.replace("interface: eth0", f"interface: {interface}")
    assert plan(text).launch.network_args[1] == "btl_tcp_if_include"
    with pytest.raises(PlanError) as caught:
        plan(text, mpirun=mpirun("mpich", 5, 0))
    assert f"job.yaml:5: network.interface: MPICH 5.0 {message}" in str(caught.value)


def test_a_newer_mpi_takes_the_newest_table() -> None:
    assert find_options("openmpi", (6, 0)) == MPIS["openmpi", 5]
    assert find_options("mpich", (3, 4)) == MPIS["mpich", 4]

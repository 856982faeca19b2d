"""One cluster for all tests of a run that do not break it; those that do start their own."""

from __future__ import annotations

import getpass
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import hosts
from tests.real import need
from tests.slurm.cluster import Cluster, pmix_present, present
from tests.slurm.configuration import Layout, Node


def need_slurm() -> None:
    """SLURM and munge must be installed; see `tests.real.need`."""
    need("SLURM with munge (Debian: slurm-wlm munge)", present())


def need_pmix() -> None:
    """SLURM must find PMIx; see `tests.real.need`."""
    need("PMIx for SLURM (Debian: libpmix-dev)", pmix_present())


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    need_slurm()
    cluster = Cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, empty before and after."""
    yield shared_cluster
    shared_cluster.run("scancel", "-u", shared_cluster.layout.user)
    shared_cluster.wait_idle()


@pytest.fixture(scope="session")
def far_cluster() -> Iterator[Cluster]:
    """A cluster whose controller and nodes are hosts with a network between them; commands run on the controller's."""
    need_slurm()
    with hosts(["login", "n1", "n2"]) as net:
        places = {"slurmctld": "login", "login": "login", "n1": "n1", "n2": "n2"}
        nodes = [Node(name, 17_000, name, net.addresses[name]) for name in ("n1", "n2")]
        root = Path(tempfile.mkdtemp(prefix="hvdgrab-slurm-"))
        layout = Layout(root, getpass.getuser(), "login", net.addresses["login"], 17_001, nodes)
        cluster = Cluster(layout, lambda name: net.command(places[name], []) if name in places else ())
        try:
            cluster.bring_up(guarded=True)
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that the test may break."""
    need_slurm()
    cluster = Cluster.start()
    yield cluster
    cluster.stop()

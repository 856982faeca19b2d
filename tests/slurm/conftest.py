"""One cluster for all tests of a run that do not break it; those that do start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real import need
from tests.slurm.cluster import Cluster, present


def need_slurm() -> None:
    """SLURM and munge must be installed; see `tests.real.need`."""
    need("SLURM with munge (Debian: slurm-wlm munge)", present())


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


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that the test may break."""
    need_slurm()
    cluster = Cluster.start()
    yield cluster
    cluster.stop()

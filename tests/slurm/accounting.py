"""Accounting for a test cluster: a MariaDB and a slurmdbd of its own (Debian: ``slurmdbd mariadb-server``)."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.slurm.cluster import Cluster, find, free_ports, local_layout, wait_for
from tests.slurm.configuration import slurmdbd_conf

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb", "sacctmgr")
GRANTS = (
    "CREATE DATABASE slurm_acct; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; CREATE USER slurm@localhost IDENTIFIED BY "
    "'slurm'; GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1'; GRANT ALL ON slurm_acct.* TO slurm@localhost;"
)


def present() -> bool:
    """Whether all programs are installed."""
    return all(find(name) for name in PROGRAMS)


@contextlib.contextmanager
def accounted_cluster() -> Iterator[Cluster]:
    """A cluster of two nodes on this host, with accounting."""
    cluster = Cluster(local_layout(_root(), database=True))
    try:
        cluster.prepare(guarded=True)
        _start_database(cluster)
        _start_daemons(cluster)
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def two_clusters() -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters, hvdgrab and west, that one slurmdbd knows, so that each can be asked from the other by ``--clusters``."""
    with accounted_cluster() as first:
        layout = local_layout(_root(), ("w1", "w2"))
        shared = {"name": "west", "munge": first.layout.munge_socket, "database_port": first.layout.database_port}
        second = Cluster(replace(layout, **shared))  # type: ignore[arg-type]
        try:
            second.prepare(guarded=True)
            _register(second)
            _start_daemons(second)
            yield first, second
        finally:
            second.stop()


def _root() -> Path:
    return Path(tempfile.mkdtemp(prefix="hvdgrab-slurm-"))


def _start_daemons(cluster: Cluster) -> None:
    cluster.start_controller()
    for node in cluster.layout.nodes:
        cluster.start_node(node.name)
    cluster.wait_idle()


def _start_database(cluster: Cluster) -> None:
    data, socket, user = cluster.root / "mariadb", cluster.root / "run" / "mariadb", cluster.layout.user
    install = [str(find("mariadb-install-db")), "--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal",
               "--skip-test-db", f"--user={user}"]  # fmt: skip
    subprocess.run(install, capture_output=True, timeout=120, check=True)
    with free_ports(1) as (port,):
        pass
    cluster._start(
        "mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={socket}", f"--port={port}", f"--user={user}",
        "--bind-address=127.0.0.1", f"--pid-file={cluster.root}/run/mariadb.pid", "--innodb-buffer-pool-size=32M",
    )  # fmt: skip
    client = [str(find("mariadb")), "--no-defaults", f"--socket={socket}", "-u", "root", "-e"]

    def asked(statement: str) -> bool:
        return subprocess.run([*client, statement], capture_output=True, timeout=30, check=False).returncode == 0

    wait_for(lambda: asked("SELECT 1"), "mariadbd", 60)
    assert asked(GRANTS)
    conf = cluster.root / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text(slurmdbd_conf(cluster.layout, port))
    cluster._start("slurmdbd", "slurmdbd", "-D")
    _register(cluster)
    assert cluster.run("sacctmgr", "-i", "add", "account", "physics", "Description=x", "Organization=x").returncode == 0
    assert cluster.run("sacctmgr", "-i", "add", "user", user, "Account=physics").returncode == 0


def _register(cluster: Cluster) -> None:
    name = cluster.layout.name
    wait_for(lambda: cluster.run("sacctmgr", "-i", "add", "cluster", name).returncode == 0, "slurmdbd", 60)

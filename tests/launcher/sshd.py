"""Hosts in network namespaces, each with an sshd of its own and keys that are thrown away."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.jobdir.paths import JobPaths
from tests.hosts import Net, hosts
from tests.launcher.attempts import QUICK, job_of, until
from tests.launcher.helpers import CHECKOUT
from tests.real import need

CONFIGURATION = """
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 100
LogLevel ERROR
"""
SSHD = "/usr/sbin/sshd"


@dataclass(frozen=True)
class Cluster:
    """The hosts, and what a job needs to reach them."""

    net: Net
    folder: Path
    """Keys."""

    @property
    def ssh(self) -> dict[str, Any]:
        """The ``resources.ssh`` of a job."""
        options = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        return {"identity": str(self.folder / "user"), "options": options}

    def job(self, folder: Path, command: list[str], places: Sequence[str], **sections: Any) -> JobPaths:
        """A job with two ranks on each of some hosts."""
        resources = {"hosts": list(places), "ssh": self.ssh, **sections.pop("resources", {})}
        ranks = resources.pop("ranks", sum(int(place.rpartition(":")[2]) for place in places))
        return job_of(folder, command, ranks=ranks, resources=resources, network={"interface": "eth0"}, **sections)

    def supervise(self, job: JobPaths, attempt: int = 1, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """The supervisor of an attempt, on the first host."""
        command = [sys.executable, "-m", "launcher.supervise", str(job.root), str(attempt)]
        environment = {"PYTHONPATH": str(CHECKOUT), **QUICK, **(env or {})}
        options: dict[str, Any] = {"text": False, "stderr": subprocess.PIPE, "cwd": str(CHECKOUT)}
        process: Any = self.net.start(self.net.names[0], command, environment, **options)
        return process  # type: ignore[no-any-return]  # bytes, since text is False


def start_sshd(net: Net, host: str, folder: Path) -> subprocess.Popen[str]:
    """An sshd on one host; it ends with its host."""
    assert net.run(host, ["mkdir", "-p", "/run/sshd"]).returncode == 0
    process = net.start(host, [SSHD, "-D", "-e", "-f", str(folder / "sshd.conf")], stderr=subprocess.DEVNULL)
    probe = "import socket; socket.create_connection(('127.0.0.1', 22), 1)"
    until(lambda: net.run(host, [sys.executable, "-c", probe]).returncode == 0, f"sshd on {host}")
    return process


@contextlib.contextmanager
def cluster(names: Sequence[str], folder: Path, without: Sequence[str] = ()) -> Iterator[Cluster]:
    """Hosts of these names, all but some with an sshd."""
    need("sshd", shutil.which("ssh-keygen") is not None and Path(SSHD).exists())
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "sshd.conf").write_text(CONFIGURATION.format(folder=folder))
    with hosts(names) as net:
        daemons = [start_sshd(net, name, folder) for name in names if name not in without]
        yield Cluster(net, folder)
    for daemon in daemons:
        daemon.wait(10)

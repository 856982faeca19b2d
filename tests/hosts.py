"""Several hosts on one machine, with a network of a given rate between them; for root, on Linux.

Each host is a set of namespaces: its own network card ``eth0``, host name, process numbers, ``/dev/shm``, ``/run``, and
``/etc/hosts`` with the names of all; the file system is common, as on a cluster.  A bridge in a namespace of its own connects
them.  Nothing has a name outside.  If the process that made the hosts ends, for whatever reason, their first processes end too,
and the kernel ends all other processes and removes the cards and the mounts.

    with hosts(2, rate="100mbit") as net:
        net.run("h1", ["hostname"])                             # a subprocess.CompletedProcess
        net.mpirun(2, ["-m", "tests.comm.mpi_program"])         # two ranks of this Python on each host
        net.bytes("h2")                                         # what its card has received and sent
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hvdgrab.bench import runs
from hvdgrab.bench.gather import Card, cards
from hvdgrab.bench.runs import BenchError
from tests import host_agent
from tests.real import need

NETWORK = "10.77.0.0/24"
"""The same for every set of hosts, since each has a network of its own."""

_FOLDER = "hvdgrab-hosts-"
_TOOLS = ("ip", "tc", "unshare", "nsenter", "mount")
_FOREIGN = ("OMPI_", "PMIX_", "PMI_", "HVDGRAB_", "SLURM_")
"""Prefixes of environment variables of a job that this process may belong to."""


def missing() -> str:
    """What this machine or user lacks to make hosts, for a message; empty if nothing."""
    if sys.platform != "linux":
        return "Linux"
    if os.geteuid() != 0:
        return "root, for network namespaces"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        return f"the programs {', '.join(absent)} (Debian: apt-get install iproute2 util-linux mount)"
    tried = subprocess.run(
        ["unshare", "-n", "-u", "-i", "-m", "-p", "-f", "ip", "link", "add", "bridge0", "type", "bridge"], capture_output=True,
        text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return f"permission to make namespaces and bridges ({tried.stderr.strip()})" if tried.returncode else ""


class Net:
    """Hosts and the network between them; made by `build_hosts`."""

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self.names = list(names)
        self.folder = folder
        self.addresses = {name: f"{NETWORK.rpartition('.')[0]}.{number}" for number, name in enumerate(names, start=1)}
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._first: dict[str, int] = {}
        """First process, as numbered outside, of every host, and of the switch under the empty name."""

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """The command that runs ``arguments`` on ``host``."""
        return [sys.executable, "-I", "-S", host_agent.__file__, "run", str(self.folder), host, *map(str, arguments)]

    @property
    def remote_shell(self) -> str:
        """Open MPI's rsh agent: a command that runs a command line on a host, both given as further arguments."""
        return shlex.join([sys.executable, "-I", "-S", host_agent.__file__, "rsh", str(self.folder)])

    def start(
        self, host: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program on a host: signals to the process reach the program, and it ends with the program's exit code.

        Args:
            host: its name.
            arguments: of the program.
            environment: added to this process's own, without the variables of a job.
            **options: of `subprocess.Popen`.
        """
        options = {"text": True, "stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen(self.command(host, arguments), env=_environment(environment), **options)

    def run(
        self, host: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None, timeout: float = 60.0,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a program on a host to its end; see `start`, and `subprocess.run` for the rest."""
        options = {"text": True, "stdin": subprocess.DEVNULL, "capture_output": True, "check": False, **options}
        return subprocess.run(self.command(host, arguments), env=_environment(environment), timeout=timeout, **options)

    def mpirun_command(self, ranks: int, arguments: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """The ``mpirun`` that, on the first host, runs this Python with ``arguments`` on ``ranks`` ranks of every host."""
        only = [word for layer in ("btl_tcp", "oob_tcp") for word in ("--mca", f"{layer}_if_include", NETWORK)]
        places = ",".join(f"{name}:{ranks}" for name in self.names)
        return [
            runs.mpirun(), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks * len(self.names)),
            "--host", places, "--mca", "plm_rsh_agent", self.remote_shell, *only, *options, sys.executable, *arguments,
        ]  # fmt: skip

    def mpirun(
        self, ranks: int, arguments: Sequence[str], environment: Mapping[str, str] | None = None, timeout: float = 120.0,
        options: Sequence[str] = (), **more: Any,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run `mpirun_command` to its end.  ``environment`` reaches all ranks; ``more`` is for `subprocess.run`."""
        given = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})}
        exported = [word for name in given for word in ("-x", name)]
        return self.run(
            self.names[0], self.mpirun_command(ranks, arguments, [*options, *exported]), given, timeout=timeout, **more
        )

    def bytes(self, host: str) -> Card:
        """The counters of a host's card."""
        return cards(Path(f"/proc/{self._first[host]}/net/dev"))["eth0"]

    def cut(self, host: str) -> None:
        """Unplug a host's cable: nothing reaches it any more, without any error."""
        self._in_network("", ["ip", "link", "set", f"port{self.names.index(host) + 1}", "down"])

    def mend(self, host: str) -> None:
        """Plug it in again."""
        self._in_network("", ["ip", "link", "set", f"port{self.names.index(host) + 1}", "up"])

    def lose(self, host: str) -> None:
        """Switch a host off for good: kill all its processes and remove its card."""
        os.kill(self._first[host], signal.SIGKILL)
        self._holders[host].wait(30)

    def build(self, rate: str | None, shm_bytes: int) -> None:
        """Make everything; called by `build_hosts`."""
        lines = [f"{address} {name}\n" for name, address in self.addresses.items()]
        (self.folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
        self._hold("", ["unshare", "-n", "-f", "--kill-child", "sh", "-c", "echo ready && exec cat"])
        self._in_network("", ["ip", "link", "add", "switch", "up", "type", "bridge"])
        namespaces = ["unshare", "-n", "-u", "-i", "-m", "-p", "-f", "--kill-child", "--mount-proc"]
        for name in self.names:
            agent = [sys.executable, "-I", "-S", host_agent.__file__, "serve", str(self.folder), name, str(shm_bytes)]
            self._hold(name, [*namespaces, *agent])
        for number, name in enumerate(self.names, start=1):
            self._connect(name, f"port{number}", rate)

    def tear_down(self) -> None:
        """End every host, and wait until none of their processes is left.  Idempotent."""
        for holder in self._holders.values():
            assert holder.stdin is not None
            holder.stdin.close()
        for holder in self._holders.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(5)
            holder.kill()
            holder.wait()
            assert holder.stdout is not None
            holder.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _hold(self, name: str, command: list[str]) -> None:
        """Start a first process, and wait until it is ready.  It ends when its pipe closes, at the latest with this process."""
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=_environment(None), cwd="/"
        )
        self._holders[name] = holder
        assert holder.stdout is not None
        if holder.stdout.readline() != host_agent.READY:
            raise BenchError(f"the {f'host {name}' if name else 'network between the hosts'} cannot be made: see the lines above")
        (self._first[name],) = map(int, Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split())

    def _connect(self, name: str, port: str, rate: str | None) -> None:
        card = ["peer", "name", "eth0", "netns", str(self._first[name])]
        self._in_network("", ["ip", "link", "add", "name", port, "type", "veth", *card])
        self._in_network("", ["ip", "link", "set", port, "up", "master", "switch"])
        for place in (name, ""):  # no IPv6: its announcements would be counted
            self._in_network(place, ["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true"])
        self._in_network(name, ["ip", "address", "add", f"{self.addresses[name]}/24", "dev", "eth0"])
        for device in ("lo", "eth0"):
            self._in_network(name, ["ip", "link", "set", device, "up"])
        if rate is not None:
            for place, device in ((name, "eth0"), ("", port)):
                limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
                self._in_network(place, ["tc", "qdisc", "add", "dev", device, "root", *limit])

    def _in_network(self, name: str, command: list[str]) -> None:
        done = subprocess.run(
            ["nsenter", "-t", str(self._first[name]), "-n", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchError(f"{shlex.join(command)} failed for {name or 'the switch'}: {done.stderr.strip()}")


@contextlib.contextmanager
def hosts(which: int | Sequence[str], rate: str | None = None, shm_bytes: int = 2**30) -> Iterator[Net]:
    """Build hosts for a test, which fails in CI and is skipped elsewhere if they cannot be made."""
    need_hosts()
    with build_hosts(which, rate, shm_bytes) as net:
        yield net


def need_hosts() -> None:
    """Fail in CI, skip elsewhere, if hosts cannot be made."""
    lacking = missing()
    need(f"hosts in network namespaces need {lacking}, which", present=not lacking)


@contextlib.contextmanager
def build_hosts(which: int | Sequence[str], rate: str | None = None, shm_bytes: int = 2**30) -> Iterator[Net]:
    """Build hosts for the length of a ``with`` block.

    Args:
        which: how many (they are called h1, h2, …), or their names.
        rate: of every host's link in each direction, as tc(8) spells it, such as ``100mbit``; None: as fast as the machine.
        shm_bytes: size of each host's /dev/shm.

    Raises:
        BenchError: this user or machine cannot make hosts; the message says what is missing.
    """
    if lacking := missing():
        raise BenchError(f"hosts on this machine need {lacking}")
    _sweep()
    names = [f"h{number}" for number in range(1, which + 1)] if isinstance(which, int) else list(which)
    net = Net(names, Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")))
    try:
        net.build(rate, shm_bytes)
        yield net
    finally:
        net.tear_down()


def _sweep() -> None:
    """Remove the folders of killed processes, whose hosts are gone already."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        owner = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, **(more or {})}

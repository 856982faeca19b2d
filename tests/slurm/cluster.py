"""A real SLURM of two virtual nodes on this machine: munge, slurmctld and two slurmd, private to whoever starts it.

For people: ``make slurm-up`` and ``make slurm-down``, see `tests.slurm.by_hand`.  For tests: `Cluster.start`, with a guard that
ends everything when the test run dies, however it dies.

Debian packages: ``slurm-wlm munge``, and ``libpmix-dev`` for ``srun --mpi=pmix``.  Root is not needed: daemons and jobs run as
the caller.  Nothing outside the cluster's directory is read or written, and all ports are free ones, so that several clusters and
the machine's own SLURM live side by side.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.slurm.configuration import Layout, Node, gres_conf, slurm_conf

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scontrol")
SEARCH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"))
MARK = "HVDGRAB_TEST_CLUSTER"
"""Variable that every daemon of a cluster, and what it starts, carries: the cluster's directory."""
BY_HAND = "by-hand"
"""File in the directory of a cluster that stays until somebody ends it."""
START_SECONDS = 30.0


class ClusterError(Exception):
    """The cluster could not be started."""


def find(name: str) -> str | None:
    """A program of SLURM or munge; the daemons lie in sbin, which is not on everybody's PATH."""
    return shutil.which(name, path=SEARCH)


def present() -> bool:
    """Whether all programs that a cluster needs are installed."""
    return all(find(name) for name in PROGRAMS)


def pmix_present() -> bool:
    """Whether ``srun --mpi=pmix`` can work: Debian's SLURM looks for a file that only ``libpmix-dev`` brings."""
    return any(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so"))


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Ports that are free now; held until the block is left."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("", 0))
        yield [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def local_layout(root: Path, nodes: Sequence[str] = ("n1", "n2"), *, database: bool = False) -> Layout:
    """A cluster whose nodes are all this host."""
    host = socket.gethostname()
    with free_ports(len(nodes) + 2) as (controller, database_port, *ports):
        return Layout(
            root=root, user=getpass.getuser(), controller=host, controller_address="127.0.0.1", controller_port=controller,
            nodes=[Node(name, port, host, "127.0.0.1") for name, port in zip(nodes, ports, strict=True)],
            database_port=database_port if database else 0,
        )  # fmt: skip


def wait_for(condition: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until a condition holds.  Raises ClusterError after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)


class Cluster:
    """A running cluster; `start` makes one, `stop` leaves nothing of it."""

    def __init__(self, layout: Layout, wrap: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
        self.layout = layout
        self.root = layout.root
        self._wrap = wrap
        """Words before a daemon's command, by its name: how it enters a network namespace."""
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(cls, parent: Path | None = None, *, guarded: bool = True) -> Cluster:
        """Start a cluster of two nodes on this host.

        Args:
            parent: where its directory is made; its path must be short (munge's socket).
            guarded: whether it ends with this process.

        Raises:
            ClusterError: with the last words of the daemon that did not come up.
        """
        last: ClusterError | None = None
        for _ in range(3):  # somebody else may take a port between the look and the start
            cluster = cls(local_layout(Path(tempfile.mkdtemp(prefix="hvdgrab-slurm-", dir=parent))))
            try:
                cluster.bring_up(guarded=guarded)
            except ClusterError as error:
                cluster.stop()
                last = error
            except BaseException:  # Ctrl-C
                cluster.stop()
                raise
            else:
                return cluster
        assert last is not None
        raise last

    def bring_up(self, *, guarded: bool) -> None:
        """Write the files, start the daemons and wait until the nodes are idle."""
        self.prepare(guarded=guarded)
        self.start_controller()
        for node in self.layout.nodes:
            self.start_node(node.name)
        self.wait_idle()

    def prepare(self, *, guarded: bool) -> None:
        """Write the files and start the guard and munge."""
        self.root.chmod(0o755)  # jobs of every user write below; mkdtemp makes it private
        for name in ("munge", "state", "run", "log"):
            (self.root / name).mkdir(mode=0o755)
        (self.root / "slurm.conf").write_text(slurm_conf(self.layout))
        (self.root / "gres.conf").write_text(gres_conf(self.layout))
        for name in ("plugstack.conf", "gpu0", "gpu1"):
            (self.root / name).touch()
        if guarded:
            self._start_guard()
        else:
            (self.root / BY_HAND).touch()  # first of all, so that `down` finds what an interrupted `up` has left
        if self.layout.munge is None:
            self._start_munge()

    def _start_munge(self) -> None:
        key = self.root / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {name: self.root / "munge" / name for name in ("socket", "pid", "log", "seed")}
        options = (f"--{option}={files[name]}" for option, name in
                   {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}.items())  # fmt: skip
        self._start("munged", "munged", "-F", "--force", f"--key-file={key}", *options)
        self._wait("munged", files["socket"].exists)

    def _start_guard(self) -> None:
        """A process that outlives this one by as long as it takes to end the cluster."""
        reads, writes = os.pipe()  # the other end closes when this process ends, whatever ends it
        self._alive = os.fdopen(writes, "wb")
        argv = [sys.executable, "-m", "tests.slurm.cluster", str(self.root)]
        checkout = Path(__file__).resolve().parents[2]
        self._guard = subprocess.Popen(argv, cwd=checkout, stdin=reads, stdout=subprocess.DEVNULL, start_new_session=True)
        os.close(reads)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The caller's environment with this cluster, and no other, in it."""
        foreign = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "PMI", "OMPI_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return {**kept, **self.variables(), "PATH": SEARCH, **(extra or {})}

    def variables(self) -> dict[str, str]:
        """What whoever uses the cluster must set.

        Its nodes claim more cores than there are, so that ranks must let others run while they wait; and ranks on nodes that
        share a host name would take each other's memory for their own.
        """
        shared = len({node.hostname for node in self.layout.nodes}) == 1
        wires = {"OMPI_MCA_btl": "self,tcp"} if shared else {}
        return {"SLURM_CONF": str(self.layout.conf), "OMPI_MCA_mpi_yield_when_idle": "1", **wires}

    def run(self, *argv: str, timeout: float = 60, **further: object) -> subprocess.CompletedProcess[str]:
        """A command with this cluster in its environment, on the controller's host."""
        return subprocess.run(
            [*self._wrap("login"), *argv], env=self.environment(), capture_output=True, text=True, timeout=timeout, check=False,
            **further,  # type: ignore[call-overload]
        )  # fmt: skip

    def on(self, name: str) -> Sequence[str]:
        """Words before a command that run it where a daemon of that name, or ``login``, is."""
        return self._wrap(name)

    def _start(self, name: str, program: str, *arguments: str) -> None:
        path = find(program)
        if path is None:
            raise ClusterError(f"{program} is not installed: apt-get install slurm-wlm munge")
        with self.layout.log(name).open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [*self._wrap(name), path, *arguments], cwd=self.root, env=self.environment({MARK: str(self.root)}),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _wait(self, name: str, condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
        """Wait for a condition that a daemon should bring about."""

        def held_or_dead() -> bool:
            if self.daemons[name].poll() is not None:
                raise ClusterError(f"{name} ended: {self.last_words(name)}")
            return bool(condition())

        try:
            wait_for(held_or_dead, name, seconds)
        except ClusterError as error:
            raise ClusterError(f"{error}: {self.last_words(name)}") from None

    def last_words(self, name: str) -> str:
        """The last lines of a daemon's log."""
        log = self.layout.log(name)
        return " | ".join(log.read_text("utf-8", "replace").splitlines()[-5:]) if log.exists() else "no log"

    def start_controller(self) -> None:
        """Start slurmctld and wait for its answer."""
        self._start("slurmctld", "slurmctld", "-D", "-f", str(self.layout.conf))
        self._wait("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0)

    def start_node(self, name: str) -> None:
        """Start one slurmd."""
        for kind in ("spool", "tmp"):  # each its own: PMIx makes a directory of one name on every node of a job
            (self.root / f"{kind}-{name}").mkdir(exist_ok=True)
        self._start(name, "slurmd", "-D", "-N", name, "-f", str(self.layout.conf))

    def wait_idle(self) -> None:
        """Wait until every node can take work."""
        count = len(self.layout.nodes)
        ask = ("sinfo", "-h", "-N", "-p", "main", "-o", "%T")
        self._wait("slurmctld", lambda: self.run(*ask).stdout.split() == ["idle"] * count)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal one daemon: STOP freezes it, CONT lets it go on, KILL ends it."""
        self.daemons[name].send_signal(number)
        if number == signal.SIGKILL:
            self.daemons[name].wait()

    def stop(self) -> None:
        """End everything and remove the directory."""
        end(self.root)
        for process in self.daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        if self._guard is not None:
            self._alive.close()
            self._guard.wait(20)
            self._guard = None


def members(root: Path) -> list[psutil.Process]:
    """Processes of a cluster: its daemons, their step daemons, and jobs, which carry its slurm.conf; the caller left out."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get(MARK) == str(root):
            found[process.pid] = process
            with contextlib.suppress(psutil.Error):
                found.update({child.pid: child for child in process.children(recursive=True)})
        elif environment.get("SLURM_CONF") == str(root / "slurm.conf") and "SLURM_JOB_ID" in environment:
            found[process.pid] = process
    found.pop(os.getpid(), None)
    return list(found.values())


def end(root: Path) -> None:
    """Kill every process of a cluster, again until none is found, and remove its directory."""
    deadline = time.monotonic() + 15
    while (found := members(root)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
    shutil.rmtree(root, ignore_errors=True)


def guard(root: Path) -> int:
    """Wait for the end of whoever holds the other end of stdin, then end the cluster: ``python -m tests.slurm.cluster ROOT``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(root)
    return 0


if __name__ == "__main__":
    sys.exit(guard(Path(sys.argv[1])))

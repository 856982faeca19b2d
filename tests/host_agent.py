"""The first process of a host that `tests.hosts` makes, and the client that starts processes there.

It uses only the standard library, so that ``python -I -S`` starts it in a few milliseconds::

    host_agent.py serve FOLDER NAME SHM_BYTES      as process 1 of the host; ends, and the host with it, with its standard input
    host_agent.py run FOLDER NAME ARG…             runs a program on the host: its output, its signals, its exit code
    host_agent.py rsh FOLDER NAME COMMAND…         the same for a shell's command line, as ssh does

If a client dies, its program's process group is asked to end, and killed after some seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FORWARDED = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT]
PATIENCE = 5.0
"""Seconds between asking and killing."""

READY = b"ready\n"


def main(arguments: list[str]) -> int:
    """See the module."""
    action, folder, name, *rest = arguments
    if action == "serve":
        return Agent(folder, name, int(rest[0])).serve()
    if action == "rsh":
        return run(folder, name, ["/bin/sh", "-c", " ".join(rest)], None, None)
    return run(folder, name, rest, dict(os.environ), str(Path.cwd()))


class Agent:
    """Process 1 of a host."""

    def __init__(self, folder: str, name: str, shm_bytes: int) -> None:
        furnish(folder, name, shm_bytes)
        self._environment = {**os.environ, "TMPDIR": "/run/tmp", "XDG_RUNTIME_DIR": "/run/user"}
        self._clients: dict[int, socket.socket] = {}
        """Clients by the process started for each."""
        self._doomed: dict[int, float] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/{name}.sock")
        self._listener.listen(64)
        self._woken, wake = socket.socketpair()
        for end in (self._woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake = wake

    def serve(self) -> int:
        """Serve until the standard input ends."""
        for source in (self._listener, self._woken, sys.stdin.buffer):
            self._selector.register(source, selectors.EVENT_READ)
        os.write(1, READY)
        while True:
            for key, _ in self._selector.select(0.2 if self._doomed else None):
                if key.fileobj is sys.stdin.buffer:
                    return 0
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, int):
                    self._listen(key.data)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.settimeout(10.0)
        try:
            head, files, _, _ = socket.recv_fds(client, 8, 3)
            request = json.loads(_exactly(client, int.from_bytes(head, "little")))
        except (OSError, ValueError):
            client.close()
            return
        environment = self._environment if request["environment"] is None else {**request["environment"], **self._own()}
        pid = start(request["arguments"], environment, request["folder"], files)
        for file in files:
            os.close(file)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)

    def _own(self) -> dict[str, str]:
        return {name: self._environment[name] for name in ("TMPDIR", "XDG_RUNTIME_DIR")}

    def _listen(self, pid: int) -> None:
        """Forward the signals whose numbers a client sends; if the client ended, end its program."""
        client = self._clients.get(pid)
        numbers = b"" if client is None else _received(client)
        with contextlib.suppress(ProcessLookupError):
            for number in numbers:
                os.kill(pid, number)
            if not numbers and client is not None:
                os.killpg(pid, signal.SIGTERM)
                os.killpg(pid, signal.SIGCONT)
                self._doomed[pid] = time.monotonic() + PATIENCE
        if not numbers:
            self._forget(pid)

    def _reap(self) -> None:
        for pid in [pid for pid, due in self._doomed.items() if due < time.monotonic()]:
            del self._doomed[pid]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            client = self._clients.get(pid)
            if client is not None:
                with contextlib.suppress(OSError):
                    client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                self._forget(pid)

    def _forget(self, pid: int) -> None:
        client = self._clients.pop(pid, None)
        if client is not None:
            self._selector.unregister(client)
            client.close()


def furnish(folder: str, name: str, shm_bytes: int) -> None:
    """Give this process's namespaces a host name and their own /dev/shm, /run, /sys and /etc/hosts."""
    socket.sethostname(name)
    mounts = [
        ["-t", "tmpfs", "-o", f"size={shm_bytes},mode=1777", "tmpfs", "/dev/shm"],
        ["-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"],
        ["--bind", f"{folder}/hosts", "/etc/hosts"],
        ["-t", "sysfs", "sysfs", "/sys"],
    ]
    if os.path.ismount("/sys/fs/cgroup"):  # carry over the control groups, which the new /sys hides
        mounts.insert(2, ["--rbind", "/sys/fs/cgroup", "/run/cgroup"])
        mounts.append(["--rbind", "/run/cgroup", "/sys/fs/cgroup"])
    for arguments in mounts:
        if arguments[-1] == "/run/cgroup":
            Path("/run/cgroup").mkdir()
        subprocess.run(["mount", *arguments], check=True)
    for path, mode in (("/run/tmp", 0o1777), ("/run/lock", 0o1777), ("/run/user", 0o700), ("/run/sshd", 0o755)):
        Path(path).mkdir()
        Path(path).chmod(mode)


def start(arguments: list[str], environment: dict[str, str], folder: str | None, files: list[int]) -> int:
    """Start a program in a session of its own, with ``files`` as its standard streams; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(folder or "/")
        os.execvpe(arguments[0], arguments, environment)
    except OSError as error:
        os.write(2, f"{arguments[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def run(folder: str, name: str, arguments: list[str], environment: dict[str, str] | None, directory: str | None) -> int:
    """Run a program on a host and end as it ends."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{folder}/{name}.sock")
    request = json.dumps({"arguments": arguments, "environment": environment, "folder": directory}).encode()
    socket.send_fds(connection, [len(request).to_bytes(8, "little")], [0, 1, 2])
    connection.sendall(request)

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(bytes([number]))

    for number in FORWARDED:
        signal.signal(number, forward)
    answer = b""
    while part := connection.recv(64):
        answer += part
    if not answer:
        sys.stderr.write(f"the host {name} is gone\n")
        return 255
    code = int(answer)
    if code < 0:  # the program died of a signal, and so does this client
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
        signal.pause()
    return code


def _exactly(client: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = client.recv(count - len(data))
        if not part:
            raise OSError("the client ended within its request")
        data += part
    return bytes(data)


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(64)
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

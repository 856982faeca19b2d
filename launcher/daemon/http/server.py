"""The server: uvicorn on a Unix socket that only this user can reach, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from launcher.daemon.context import log
from launcher.daemon.dirs import Dirs, check_socket_path
from launcher.errors import LauncherError

START_SECONDS = 30.0
LOOK_SECONDS = 3.0
"""The socket is looked for so often."""
REQUESTS_MOST = 256
"""Requests at the same time; the next ones are told to come back."""
_REFUSAL = (
    b'HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 46\r\n\r\n{"detail": "this daemon belongs to another one"}'
)


def bind(path: Path) -> socket.socket:
    """A listening socket at a path, for this user alone; one that a dead daemon left is replaced.

    Raises:
        LauncherError: if it cannot be made.
    """
    check_socket_path(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise LauncherError(f"the socket {path} cannot be made: {error.strerror}") from error
    finally:
        os.umask(before)
    return listening


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end of a Unix socket, as the kernel says."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


class PeerCheckedProtocol(H11Protocol):
    """HTTP, for connections of this user's processes alone: the rights of the socket's file are not the only guard."""

    def connection_made(self, transport: Any) -> None:
        """Refuse another user's connection before anything is read from it."""
        uid = peer_uid(transport.get_extra_info("socket"))
        if uid != os.getuid():
            log.warning("a connection of user %d was refused", uid)
            transport.write(_REFUSAL)
            transport.close()
            return
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Pass on what was sent, unless the connection was refused."""
        if self.transport is not None:
            super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up, unless the connection was refused."""
        if self.transport is not None:
            super().connection_lost(error)


class ChangeNotifier:
    """Wakes requests that wait for a change.  `notify` may be called from any thread, all else from the server's loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self.closed = False
        """Whether the daemon ends: no request should wait any more."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the loop in which the server runs."""
        self._loop = loop

    def notify(self) -> None:
        """Wake all who wait."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Wake all who wait, because the daemon ends."""
        self.closed = True
        self.notify()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def listen(self) -> asyncio.Future[None]:
        """Start to listen: no change from now on is missed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    async def wait(self, listening: asyncio.Future[None], seconds: float) -> None:
        """Wait until a change, or until some seconds have passed."""
        await asyncio.wait([listening], timeout=seconds)
        self._waiting.discard(listening)


class Server:
    """Serves an application until `stop`."""

    def __init__(self, app: Any, changes: ChangeNotifier, path: Path) -> None:
        self._path = path
        self._changes = changes
        self._socket = bind(path)
        self._file = path.lstat().st_ino
        config = uvicorn.Config(
            app, http=PeerCheckedProtocol, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            limit_concurrency=REQUESTS_MOST, timeout_keep_alive=5, timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="api", daemon=True)

    def start(self) -> None:
        """Serve from now on.  Raises LauncherError if the server does not come up."""
        self._thread.start()
        pause = threading.Event()
        for _ in range(int(START_SECONDS / 0.01)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            pause.wait(0.01)
        raise LauncherError(f"the server at {self._path} has not come up")

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._changes.attach(asyncio.get_running_loop())
        await self._server.serve(sockets=[self._socket])

    def missing(self) -> bool:
        """Whether the socket's file was removed or replaced, so that no client can connect any more."""
        try:
            return self._path.lstat().st_ino != self._file
        except OSError:
            return True

    def stop(self) -> None:
        """Answer what is under way, and end; the socket's file goes, unless another daemon has made its own there."""
        self._changes.close()
        self._server.should_exit = True
        self._thread.join(5)
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._path.lstat().st_ino == self._file:
                self._path.unlink()


class ReopeningServer:
    """A server that is made anew after its socket was removed, as the last logout does to ``/run/user/UID``."""

    def __init__(self, app: Any, changes: ChangeNotifier, dirs: Dirs) -> None:
        self._app = app
        self._changes = changes
        self._dirs = dirs
        self._server = Server(app, changes, dirs.socket)
        self._looked = 0.0
        self._complained = False

    def start(self) -> None:
        """Serve from now on.  Raises LauncherError if the server does not come up."""
        self._server.start()

    def look(self, now: float) -> None:
        """Make the socket again if it is missing; if that fails, try again later.

        Args:
            now: seconds of a clock that never goes back.
        """
        if now < self._looked + LOOK_SECONDS:
            return
        self._looked = now
        if not self._server.missing():
            return
        try:
            self._dirs.make()
            self._server.stop()
            self._changes.closed = False
            self._server = Server(self._app, self._changes, self._dirs.socket)
            self._server.start()
        except LauncherError as error:
            if not self._complained:
                log.warning("the socket was removed, and cannot be made again now: %s", error)
            self._complained = True
        else:
            log.warning("the socket was removed, and made again: %s", self._dirs.socket)
            self._complained = False

    def stop(self) -> None:
        """As `Server.stop`."""
        self._server.stop()

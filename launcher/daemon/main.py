"""The daemon's process: ``python -m launcher.daemon [--ready-fd N]``."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

import hvdgrab
from launcher.attempt.starter import Starter
from launcher.daemon import loop, spawn
from launcher.daemon.clock import SystemClock
from launcher.daemon.context import Context, log
from launcher.daemon.dirs import Dirs
from launcher.daemon.engine import Engine
from launcher.daemon.record.jobs import Store
from launcher.daemon.record.lease import LeaseHeldError
from launcher.daemon.requests import Desk
from launcher.daemon.settings import load
from launcher.daemon.spawn import Starting
from launcher.daemon.spool import Spool
from launcher.errors import EXIT_FAILED, EXIT_OK, LauncherError, UnreachableError, UsageError

LOG_BYTES, LOG_FILES = 4 << 20, 3
"""The log is bounded: so many bytes a file, and so many old files."""


RETURN_SECONDS = 15.0
"""A living daemon whose socket was removed has made it again after so long."""


class AlreadyRunningError(UnreachableError):
    """Another daemon of this user runs on this host."""

    def __init__(self, dirs: Dirs) -> None:
        self.pid, version = dirs.lock_owner() or (0, "unknown")
        super().__init__(f"a daemon runs already on this host: process {self.pid}, version {version}")


def main(argv: Sequence[str] | None = None) -> int:
    """Be the daemon, in the background; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    if given and (len(given) != 2 or given[0] != "--ready-fd" or not given[1].isdigit()):
        raise UsageError("usage: python -m launcher.daemon [--ready-fd N]")
    return run(Dirs.of_user(), int(given[1]) if given else None)


def run(dirs: Dirs, ready_fd: int | None) -> int:
    """Be the daemon until it is asked to stop; returns the exit code.

    Args:
        dirs: where its things are.
        ready_fd: where whoever started it hears that it is ready, or why it is not; None: on stderr.
    """
    starting = Starting(ready_fd)
    umask = os.umask(0o077)
    try:
        dirs.make()
        with locked(dirs), contextlib.ExitStack() as stack:
            _log_to(dirs, also_stderr=not starting.background)
            _serve(dirs, stack, starting, umask)
    except LeaseHeldError as error:
        if error.pid is not None and starting.background:
            starting.waits(
                f"process {error.pid} holds the record, and may have lost its socket: waiting {RETURN_SECONDS:.0f} s for it"
            )
            if spawn.listens(dirs, RETURN_SECONDS):
                starting.ready(error.pid)  # the owner had lost its socket, and has made it again
                return EXIT_OK
        log.error("%s", error)
        starting.failed(str(error))
        return error.exit_code
    except AlreadyRunningError as error:
        if starting.background:
            starting.ready(error.pid)  # whoever wanted a daemon has one
            return EXIT_OK
        starting.failed(str(error))
        return error.exit_code
    except LauncherError as error:
        log.error("%s", error)
        starting.failed(str(error))
        return error.exit_code
    except Exception as error:
        log.exception("the daemon ends by an error of its own")
        starting.failed(f"the daemon ended by an error of its own, {error!r}; its log: {dirs.log}")
        return EXIT_FAILED
    return EXIT_OK


def _serve(dirs: Dirs, stack: contextlib.ExitStack, starting: Starting, umask: int) -> None:
    from launcher.daemon.http.app import build_app
    from launcher.daemon.http.server import Front
    from launcher.daemon.http.waiting import Bell

    capacity = load(dirs.settings, os.environ)
    store = Store.open(dirs.record)
    waker, bell = loop.Waker(), Bell()
    context = Context(store, dirs, build_starters(umask), SystemClock(), capacity, wake=waker.wake, changed=bell.ring)
    loop.stop_on_signals(context, waker)
    desk = Desk(context)
    desk.forget_orphans()
    server = Front(build_app(desk, bell), bell, dirs)
    stack.callback(server.stop)
    server.start()
    log.info("hvdgrab %s: process %d on %s, record %s", hvdgrab.__version__, os.getpid(), context.host, dirs.record)
    starting.ready(os.getpid())
    loop.run(context, Engine(context), Spool(context, desk), waker, server.look)
    server.stop()
    store.close()
    log.info("ended; jobs go on")


def build_starters(umask: int) -> Mapping[str, Starter]:
    """All ways to start supervisors.

    Args:
        umask: of whoever started the daemon: jobs are to share their results as their users do, the daemon nothing.
    """
    from launcher.attempt.local_starter import LocalStarter
    from launcher.slurm.starter import SlurmStarter

    return {"local": LocalStarter(umask=umask), "slurm": SlurmStarter()}


@contextlib.contextmanager
def locked(dirs: Dirs) -> Iterator[None]:
    """Hold the lock of this host; the system gives it back however this process ends.

    Raises:
        AlreadyRunningError: where another daemon holds it.
    """
    number = os.open(dirs.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError(dirs) from None
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps({"pid": os.getpid(), "version": hvdgrab.__version__}).encode("ascii"), 0)
        yield
    finally:
        os.close(number)


def _log_to(dirs: Dirs, *, also_stderr: bool) -> None:
    """Send all logs to a bounded file; a full disk must not end the daemon."""
    logging.raiseExceptions = False
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(dirs.log, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True)
    ]
    if also_stderr:
        handlers.append(logging.StreamHandler())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=handlers, force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

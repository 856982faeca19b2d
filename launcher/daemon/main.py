"""The daemon's process, ``python -m launcher.daemon [--ready-fd N]``, and the loop around the engine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import logging.handlers
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

import hvdgrab
from launcher.attempt.starter import Starter
from launcher.daemon import spawn
from launcher.daemon.context import Context, SystemClock, log
from launcher.daemon.dirs import Dirs
from launcher.daemon.engine import Engine
from launcher.daemon.lease import LeaseHeldError, LeaseLostError
from launcher.daemon.queue import load
from launcher.daemon.record import RecordError, Store
from launcher.daemon.requests import Requests
from launcher.daemon.spawn import StartupMessages
from launcher.daemon.spool import Spool
from launcher.errors import EXIT_FAILED, EXIT_OK, LauncherError, UnreachableError, UsageError
from launcher.host.files import obstacle

LOG_BYTES, LOG_FILES = 4 << 20, 3
"""Bytes of a log file, and number of old ones that are kept."""
RETURN_SECONDS = 15.0
"""Within so long, a living daemon whose socket was removed has made it again."""
PROBLEM_PAUSE = 2.0
"""Seconds until the next try, while something keeps the daemon from its work."""
REQUEST_BYTES = 1 << 16
"""Space that a request may need, with the environment that is kept for it."""


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
        dirs: where it keeps things.
        ready_fd: a descriptor for `StartupMessages`; None in the foreground.
    """
    messages = StartupMessages(ready_fd)
    umask = os.umask(0o077)
    try:
        dirs.make()
        with locked(dirs), contextlib.ExitStack() as stack:
            _log_to(dirs, also_stderr=not messages.background)
            _serve(dirs, stack, messages, umask)
    except (AlreadyRunningError, LeaseHeldError) as error:
        if messages.background and error.pid is not None and _other_answers(error, dirs, messages):
            messages.ready(error.pid)  # whoever wanted a daemon has one
            return EXIT_OK
        return _failed(error, messages)
    except LauncherError as error:
        return _failed(error, messages)
    except Exception as error:
        log.exception("the daemon ends by an error of its own")
        messages.failed(f"the daemon ended by an error of its own, {error!r}; its log: {dirs.log}")
        return EXIT_FAILED
    return EXIT_OK


def _other_answers(error: AlreadyRunningError | LeaseHeldError, dirs: Dirs, messages: StartupMessages) -> bool:
    """Whether the daemon that was there before can be used; one that had lost its socket soon makes it again."""
    if isinstance(error, AlreadyRunningError):
        return True
    messages.waits(f"process {error.pid} holds the record, and may have lost its socket: waiting {RETURN_SECONDS:.0f} s for it")
    return spawn.listens(dirs, RETURN_SECONDS)


def _failed(error: LauncherError, messages: StartupMessages) -> int:
    if not isinstance(error, AlreadyRunningError):  # the log is the other daemon's
        log.error("%s", error)
    messages.failed(str(error))
    return error.exit_code


def _serve(dirs: Dirs, stack: contextlib.ExitStack, messages: StartupMessages, umask: int) -> None:
    from launcher.daemon.http.app import build_app
    from launcher.daemon.http.server import ChangeNotifier, ReopeningServer

    capacity = load(dirs.settings, os.environ)
    store = Store.open(dirs.record)
    waker, changes = Waker(), ChangeNotifier()
    context = Context(store, dirs, build_starters(umask), SystemClock(), capacity, wake=waker.wake, changed=changes.notify)
    stop_on_signals(context, waker)
    requests = Requests(context)
    requests.forget_orphans()
    server = ReopeningServer(build_app(requests, changes), changes, dirs)
    stack.callback(server.stop)
    server.start()
    log.info("hvdgrab %s: process %d on %s, record %s", hvdgrab.__version__, os.getpid(), context.host, dirs.record)
    messages.ready(os.getpid())
    work(context, Engine(context), Spool(context, requests), waker, server.look)
    server.stop()
    store.close()
    log.info("ended; jobs go on")


def build_starters(umask: int) -> Mapping[str, Starter]:
    """All ways to start supervisors.

    Args:
        umask: of the process that started the daemon; jobs keep it, while the daemon's own files are private.
    """
    from launcher.attempt.starter import LocalStarter
    from launcher.slurm.starter import SlurmStarter

    return {"local": LocalStarter(umask=umask), "slurm": SlurmStarter()}


@contextlib.contextmanager
def locked(dirs: Dirs) -> Iterator[None]:
    """Hold the lock of this host; the kernel releases it however this process ends.

    Raises:
        AlreadyRunningError: if another daemon holds it.
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


class Waker:
    """Ends a wait from another thread, or from a signal."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the present wait, or the next one."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def wait(self, seconds: float, others: list[int]) -> None:
        """Wait until woken, until another descriptor is readable, or some seconds have passed."""
        poll = select.poll()
        for descriptor in (self._read, *others):
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)


def work(context: Context, engine: Engine, spool: Spool, waker: Waker, keep_reachable: Callable[[float], object] = id) -> None:
    """Tick until the daemon is asked to stop.

    Args:
        context: what all parts share.
        engine: does the work.
        spool: takes files in.
        waker: ends a wait.
        keep_reachable: called at each tick with the steady time.

    Raises:
        LeaseLostError: if another daemon has taken the record over.
    """
    while not context.stopping.is_set():
        now = context.clock.steady()
        pause, soon = PROBLEM_PAUSE, None
        try:
            pause = engine.tick(now)
            soon = spool.look(now)
            keep_reachable(now)
            _over(context)
            _try_writing(context)
        except LeaseLostError:
            raise
        except RecordError as error:
            _problem(context, str(error))
        except Exception as error:  # whatever it is, the other jobs need a daemon
            _problem(context, f"an error of the daemon itself, see its log: {error!r}", error)
        waker.wait(pause if soon is None else min(pause, soon), _ends(context))


def _problem(context: Context, text: str, error: Exception | None = None) -> None:
    """Note what keeps the daemon from its work; log it when it is new."""
    if context.problem != text:
        log.error("%s", text, exc_info=error)
    context.problem = text


def _over(context: Context) -> None:
    if context.problem is not None:
        log.info("the work goes on")
    context.problem = None


def _try_writing(context: Context) -> None:
    """Forget that a request was refused, once writing works again.

    The record has some space of its own, in which small changes succeed on a full disk; a request needs more.
    """
    if context.refused is None:
        return
    context.store.renew()
    if obstacle(context.dirs.state, REQUEST_BYTES) is not None:
        return
    context.refused = None
    log.info("requests can be written down again")


def _ends(context: Context) -> list[int]:
    """Descriptors that become readable when a supervisor ends."""
    return [number for starter in context.starters.values() for number in getattr(starter, "watched", list)()]


def stop_on_signals(context: Context, waker: Waker) -> None:
    """Let TERM, INT and HUP stop the daemon in an orderly way; jobs go on."""

    def note(number: int, _: FrameType | None) -> None:
        log.info("ended by %s; jobs go on", signal.Signals(number).name)
        context.stopping.set()
        waker.wake()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, note)

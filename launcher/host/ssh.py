"""Questions to other hosts over ssh: all at once, each with its own time limit, none able to hang the rest."""

from __future__ import annotations

import shlex
import socket
import threading
from collections.abc import Callable, Sequence

from launcher.host.program import PAUSE, Answer, run

AT_ONCE = 64
DEFAULTS = ("-n", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""Stand behind the user's own options; ssh takes the first that it meets."""
EXIT_NO_CONNECTION = 255
"""ssh's own exit code if it did not reach the host."""


def is_here(host: str) -> bool:
    """Whether a host's name means this host, as far as its name alone tells."""
    own = socket.gethostname().lower()
    return host.lower() in {"localhost", "127.0.0.1", own, own.partition(".")[0]}


def ask(
    ssh: Sequence[str],
    hosts: Sequence[str],
    command: Sequence[str],
    seconds: float,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Answer]:
    """Run a command on every host.

    Args:
        ssh: ssh and the user's options.
        hosts: their names.
        command: an argument list.  A shell of the other host takes ssh's line apart again, so every word is quoted for that.
        seconds: time for each host, from its own start.
        interrupted: asked all the time, in the caller's thread; once it is true, no further answer is waited for.

    Returns:
        One answer a host, in their order; its code is `EXIT_NO_CONNECTION` if ssh itself failed, None if none came in time.
    """
    from concurrent.futures import ThreadPoolExecutor, wait  # slow to import, and most processes ask nobody

    enough = threading.Event()
    line = shlex.join(command)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked = [pool.submit(run, [*ssh, *DEFAULTS, host, line], seconds=seconds, interrupted=enough) for host in hosts]
        while wait(asked, PAUSE).not_done:
            if interrupted():
                enough.set()
    return [answer.result() for answer in asked]

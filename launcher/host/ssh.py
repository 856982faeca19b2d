"""Questions to other hosts over ssh: all at once, each with its own time limit, none able to hang the rest."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

AT_ONCE = 64
PAUSE = 0.02
LONGEST = 1 << 16
"""Bytes of an answer that are read."""
DEFAULTS = ("-n", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3")
"""Stand behind the user's own options; ssh takes the first that it meets."""


@dataclass(frozen=True)
class Answer:
    """What one host said."""

    host: str
    code: int | None
    """Exit code of the command there; 255 where ssh itself failed; None where no answer came in time."""
    stdout: str
    stderr: str

    @property
    def last_line(self) -> str:
        """The last line of what went wrong."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


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
        command: an argument list.  ssh has a shell of the other host put it together again, so every word is quoted for that.
        seconds: time for each host, from its own start.
        interrupted: asked all the time; once it says so, no further answer is waited for.

    Returns:
        One answer a host, in their order.
    """
    waiting = list(enumerate(hosts))
    running: dict[int, _Question] = {}
    answers: dict[int, Answer] = {}
    line = shlex.join(command)
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            number, host = waiting.pop(0)
            running[number] = _Question([*ssh, *DEFAULTS, host, line], host, seconds)
        enough = interrupted()
        for number, question in list(running.items()):
            if (answer := question.poll(enough)) is not None:
                answers[number] = answer
                del running[number]
        if enough:
            answers.update({number: Answer(host, None, "", "interrupted") for number, host in waiting})
            break
        time.sleep(PAUSE)
    return [answers[number] for number in range(len(hosts))]


class _Question:
    """One ssh."""

    def __init__(self, argv: Sequence[str], host: str, seconds: float) -> None:
        self._host = host
        self._deadline = time.monotonic() + seconds
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the answer
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self._refused = ""
        try:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, start_new_session=True
            )
        except OSError as error:
            self._refused = f"{argv[0]}: {error.strerror}"

    def poll(self, give_up: bool) -> Answer | None:
        """The answer, once there is one, or no time is left."""
        if self._process is None:
            return self._answer(255)
        code = self._process.poll()
        if code is None and not give_up and time.monotonic() < self._deadline:
            return None
        if code is None:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return self._answer(code)

    def _answer(self, code: int | None) -> Answer:
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read(LONGEST).decode("utf-8", "replace"))
            file.close()
        return Answer(self._host, code, texts[0], self._refused or texts[1])

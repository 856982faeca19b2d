"""A program in a session of its own, with its output in a log."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcher.attempt.rank.output import LogFile, Output
from launcher.errors import BackendError
from launcher.host.processes import die_with_parent


class ProcessGroup:
    """A started program and all that stays in its group."""

    def __init__(self, process: subprocess.Popen[bytes], output: Output) -> None:
        self.process = process
        self.output = output

    @classmethod
    def start(
        cls, argv: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path, secrets: Iterable[str], attempt: int = 1
    ) -> ProcessGroup:
        """Start a program; the system sends it TERM when this process ends, however it ends.

        Args:
            argv: what to execute; never passed through a shell.
            cwd: its working directory.
            environment: its whole environment.
            log: where both its streams go.
            secrets: values to hide there.
            attempt: its number, for the line by which the log tells attempts apart.

        Raises:
            BackendError: where the system refuses.
        """
        try:
            file = LogFile(log, attempt)
            process = subprocess.Popen(
                argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True, bufsize=0, preexec_fn=_end_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise BackendError(f"{argv[0]} could not be started: {_words(error, argv[0])}") from error
        assert process.stdout is not None
        output = Output(os.dup(process.stdout.fileno()), file, secrets)
        process.stdout.close()
        return cls(process, output)

    def poll(self) -> int | None:
        """Exit code, 128 + n for signal n, or None while it runs."""
        status = self.process.poll()
        return 128 - status if status is not None and status < 0 else status

    def send(self, number: signal.Signals) -> None:
        """Signal the whole group."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # it has ended

    def stop(self, grace: float) -> None:
        """TERM, wait, KILL; returns when the program itself has ended."""
        if self.process.poll() is None:
            self.send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace)
        self.send(signal.SIGKILL)
        self.process.wait()


def _words(error: OSError, program: str) -> str:
    """Why, with the file that is to blame where it is another one than the program."""
    return f"{error.filename}: {error.strerror}" if error.filename not in (None, program) else str(error.strerror)


def _end_with_parent() -> None:
    """Runs in the child before the program; whoever is subreaper has loaded what this needs before the fork."""
    die_with_parent(signal.SIGTERM)

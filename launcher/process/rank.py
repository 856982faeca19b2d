"""The wrapper around every rank: ``python -m launcher.process.rank JOBDIR``.

It reads the rank's command from the job's plan, so that no shell and no MPI ever sees the user's arguments; starts it in a
session of its own; copies its output, whole lines, to the rank's log; passes signals on to the whole process group, followed
by KILL after `GRACE` seconds; notes start and end in the rank's mark; and ends with the program's own exit code (128 + n for
signal n).

The wrapper takes no part in MPI: the program calls MPI_Init itself, with the variables that mpirun gave the wrapper.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.paths import JobPaths
from launcher.process.marks import RankMark
from launcher.process.output import LogFile, Output
from launcher.process.signals import STOPPING, SignalBox
from launcher.process.task import Task, find_program, find_rank, read_task

GRACE = 5.0
"""Seconds between the first signal to stop and KILL.  Open MPI kills the wrapper itself one second after TERM (a longer
odls_base_sigkill_timeout would delay the end of every failing job by as much); whoever started the job then ends the program."""
DRAIN = 0.5
"""Seconds after the program's end for which output of what it left behind is still taken."""
EXIT_NOT_FOUND = 127
EXIT_NOT_STARTED = 126
PASSED_ON = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


class Rank:
    """One running program and its output."""

    def __init__(
        self, process: subprocess.Popen[bytes], output: Output, signals: SignalBox, on_stop: Callable[[], None]
    ) -> None:
        self.process = process
        self.output = output
        self.signals = signals
        self.stopped = False
        self._on_stop = on_stop
        self._kill_at: float | None = None

    def run(self) -> int:
        """Wait for the program's end; returns its status as `subprocess.Popen.returncode`."""
        while self.process.poll() is None:
            self._wait(self._time_left())
            self._pass_on()
        self._drain()
        self._send(signal.SIGKILL)
        self.output.close()
        return self.process.returncode

    def _wait(self, seconds: float | None) -> None:
        sources = [self.signals.fileno(), *([self.output.fileno()] if self.output.open else [])]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self.output.open and self.output.fileno() in ready:
            self.output.read_some()

    def _time_left(self) -> float | None:
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _pass_on(self) -> None:
        for number in self.signals.take():
            self._send(number)
            if number in STOPPING and not self.stopped:
                self.stopped = True
                self._kill_at = time.monotonic() + GRACE
                self._on_stop()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._send(signal.SIGKILL)
            self._kill_at = time.monotonic() + GRACE

    def _send(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # the group has ended, or holds nothing of ours any more

    def _drain(self) -> None:
        """Take what is in the pipe; a process left behind may hold it open, so not for ever."""
        deadline = time.monotonic() + DRAIN
        while self.output.open and time.monotonic() < deadline:
            if not self.output.read_some() and self.output.open:
                select.select([self.output.fileno()], [], [], max(0.0, deadline - time.monotonic()))


def start(task: Task, log: LogFile) -> tuple[subprocess.Popen[bytes], Output]:
    """Start a task's program with both its streams in one pipe.

    Raises:
        OSError: where the system refuses.
    """
    program = find_program(task.command[0], task.environment, task.workdir)
    if program is None:
        raise FileNotFoundError(2, "not found, or not executable", os.fsdecode(task.command[0]))
    process = subprocess.Popen(
        task.command,
        executable=program,
        cwd=task.workdir,
        env=task.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        bufsize=0,
    )
    assert process.stdout is not None
    # detached: the object would otherwise close the descriptor a second time
    return process, Output(os.dup(process.stdout.fileno()), log, task.secrets)


def run_rank(job: JobPaths, signals: SignalBox) -> int:
    """Run this process's rank of a job; returns the exit code."""
    rank = find_rank(os.environ)
    mark = RankMark(rank=rank, host=socket.gethostname(), wrapper_pid=os.getpid(), started=time.time())
    log = LogFile(job.rank_log(rank))
    try:
        task = read_task(job, os.environ)
        process, output = start(task, log)
    except OSError as error:
        return _not_started(job, mark, log, error)
    if process.stdout is not None:
        process.stdout.close()
    started = replace(mark, pid=process.pid)
    started.write(job.rank_mark(rank))
    running = Rank(process, output, signals, on_stop=lambda: replace(started, stopped=True).write(job.rank_mark(rank)))
    status = running.run()
    ended = started.ended_now(status, stopped=running.stopped, lost_output=output.lost)
    ended.write(job.rank_mark(rank))
    return ended.exit_code or 0


def _not_started(job: JobPaths, mark: RankMark, log: LogFile, error: OSError) -> int:
    text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    log.write(f"hvdgrab-launch: the command could not be started: {text}\n".encode("utf-8", "surrogateescape"))
    log.close()
    code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_STARTED
    replace(mark, error=text, exit_code=code, ended=time.time()).write(job.rank_mark(mark.rank))
    return code


def main(argv: Sequence[str]) -> int:
    """Entry point; one argument, the job directory."""
    if len(argv) != 1:
        print("usage: python -m launcher.process.rank JOBDIR", file=sys.stderr)
        return 2
    job = JobPaths(Path(argv[0]))
    try:
        with SignalBox(PASSED_ON) as signals:
            return run_rank(job, signals)
    except (OSError, ValueError, KeyError) as error:
        print(f"rank {find_rank(os.environ)}: the job directory {job.root} cannot be used: {error}", file=sys.stderr)
        return EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

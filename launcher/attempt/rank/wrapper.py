"""The wrapper around every rank: ``python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT``.

It reads the rank's command from the attempt's plan, so that no shell and no MPI ever sees the user's arguments.  It consists of
two processes, so that no single KILL leaves anything behind:

* the one that mpirun started, which passes signals on and ends with the program's own exit code (128 + n for signal n);
* its child, the `launcher.attempt.rank.keeper`, in a session of its own, which owns the program.  mpirun's KILL, which Open MPI
  sends one second after TERM, does not reach it: it then ends the program in its own time.

Each of them inherits what the other leaves.  The wrapper takes no part in MPI: the program calls MPI_Init itself, with the
variables and descriptors that mpirun gave the wrapper.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.attempt.rank.task import EXIT_NOT_STARTED, NO_PARENT, find_rank
from launcher.host import processes
from launcher.host.signals import STOPPING, SignalBox
from launcher.host.text import why
from launcher.jobdir.marks import read_mark
from launcher.jobdir.paths import AttemptPaths, JobPaths

PASSED_ON = (*STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
PARENT_POLL = 1.0
"""Seconds between looks at whether the process that started the wrapper still lives."""


def run(attempt: AttemptPaths, rank: int) -> int:
    """Run this process's rank of an attempt; returns the exit code."""
    parent = os.getppid()
    read, write = os.pipe2(os.O_CLOEXEC)
    keeper = os.fork()
    if keeper == 0:
        os.close(write)
        _become_keeper(attempt, rank, read)
    os.close(read)
    processes.become_subreaper()
    with SignalBox(PASSED_ON) as signals:
        code = _watch(keeper, parent, write, signals)
        processes.kill_descendants()  # the keeper leaves none unless it was killed
    return code if code >= 0 else _keeper_was_killed(attempt, rank, -code)


def _become_keeper(attempt: AttemptPaths, rank: int, line: int) -> None:
    """Never returns."""
    from launcher.attempt.rank.keeper import keep

    code = EXIT_NOT_STARTED
    try:
        os.setsid()
        code = keep(attempt, rank, line)
    except (OSError, ValueError, KeyError) as error:
        print(f"rank {rank}: the job directory {attempt.job.root} cannot be used: {why(error)}", file=sys.stderr)
    finally:
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _watch(keeper: int, parent: int, line: int, signals: SignalBox) -> int:
    """Pass on what arrives until the keeper has ended; returns its exit code, or minus the signal that ended it."""
    told = False
    while True:
        select.select([signals], [], [], PARENT_POLL)
        messages = signals.take()
        if not told and os.getppid() != parent:
            told = True
            messages.append(NO_PARENT)
        with suppress(OSError):
            os.write(line, bytes(messages))
        ended = processes.reap()
        if keeper in ended:
            return os.waitstatus_to_exitcode(ended[keeper])


def _keeper_was_killed(attempt: AttemptPaths, rank: int, number: int) -> int:
    """The rank cannot have ended well; the program's own exit code is lost with its keeper."""
    path = attempt.rank_mark(rank)
    mark = read_mark(path)
    if mark is not None and mark.exit_code is None:
        mark.ended_now(-number, lost_output=mark.lost_output).write(path)
    return 128 + number


def main(argv: Sequence[str]) -> int:
    """Entry point: the job directory and the attempt's number."""
    if len(argv) != 2 or not argv[1].isdigit():
        print("usage: python -m launcher.attempt.rank.wrapper JOBDIR ATTEMPT", file=sys.stderr)
        return 2
    return run(JobPaths(Path(argv[0])).attempt(int(argv[1])), find_rank(os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

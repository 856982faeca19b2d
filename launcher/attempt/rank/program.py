"""The start of a rank's program."""

from __future__ import annotations

import os
import subprocess

from launcher.attempt.rank.output import LogFile, Output
from launcher.attempt.rank.task import Task
from launcher.host.files import find_executable


def start(task: Task, log: LogFile) -> tuple[subprocess.Popen[bytes], Output]:
    """Start a task's program with both its streams in one pipe.

    Descriptors that mpirun has handed down stay open: MPICH's PMI speaks through one.

    Raises:
        OSError: where the system refuses.
    """
    program = find_executable(task.command[0], task.environment, task.workdir)
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
        close_fds=False,
        bufsize=0,
    )
    assert process.stdout is not None
    output = Output(os.dup(process.stdout.fileno()), log, task.secrets)
    process.stdout.close()  # the object would otherwise close the descriptor a second time
    return process, output

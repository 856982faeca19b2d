"""How mpirun reaches another host: ``python -m launcher.attempt.remote_shell HOST COMMAND``, with the plan's ssh and its options.

mpirun takes the name of one program for this, and splits or forgets what else is written there.  So it is given a file of fixed
text, which calls this, which reads the options from the plan, as a list.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.host.ssh import DEFAULTS
from launcher.jobdir import variables
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.jobdir.plan import Plan

TEXT = f'#!/bin/sh\nexec "${variables.PYTHON}" -m launcher.attempt.remote_shell "$@"\n'


def write(attempt: AttemptPaths) -> None:
    """Write the file that mpirun is given.

    Raises:
        OSError: if it cannot be written.
    """
    attempt.remote_shell.write_text(TEXT, "ascii")
    attempt.remote_shell.chmod(0o755)


def main(argv: Sequence[str]) -> int:
    """Entry point; does not return if ssh can be started."""
    job = JobPaths(Path(os.environ[variables.JOB_DIR]))
    plan = Plan.of(job.attempt(int(os.environ[variables.ATTEMPT])))
    command = [*plan.placement.ssh_command, *DEFAULTS[1:], *argv]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    return 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

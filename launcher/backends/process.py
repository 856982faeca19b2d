"""What the backends that start one local program have in common."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from launcher.paths import JobPaths
from launcher.plan import Plan
from launcher.process.group import ProcessGroup
from launcher.process.output import Output
from launcher.process.sweep import sweep


class ProcessBackend:
    """A `launcher.backends.base.Backend` whose argv is executed on this host."""

    name = ""

    def __init__(self) -> None:
        self._group: ProcessGroup | None = None
        self._job_id = ""
        self.left_behind = 0
        """Processes that `stop` found outside the group."""

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv to execute, and variables that this way of starting needs; every backend has its own."""
        raise TypeError(f"{type(self).__name__} defines no command, so it cannot start {plan.job_id}")

    def start(self, plan: Plan) -> int:
        """Execute the plan's argv in the job directory, so that no module of the user's directory shadows the wrapper's."""
        job = JobPaths(Path(plan.job_dir))
        secrets = [os.environ[name] for name in plan.secrets if name in os.environ]
        self._group = ProcessGroup.start(plan.argv, job.root, starting_environment(plan), job.backend_log, secrets)
        self._job_id = plan.job_id
        return self._group.process.pid

    @property
    def output(self) -> Output | None:
        """The program's own output, for the loop that waits; None before the start."""
        return self._group.output if self._group else None

    def poll(self) -> int | None:
        """Exit code, 128 + n for signal n, or None while it runs."""
        return self._group.poll() if self._group else None

    def terminate(self) -> None:
        """Ask the program to end its ranks and itself; returns at once."""
        if self._group is not None:
            self._group.send(signal.SIGTERM)

    def kill(self) -> None:
        """End the program itself; `stop` then finds the ranks.  Returns at once."""
        if self._group is not None:
            self._group.send(signal.SIGKILL)

    def stop(self, grace: float) -> list[int]:
        """End the program, then whatever else carries the job's mark."""
        if self._group is None:
            return []
        self._group.stop(grace)
        self.left_behind, remaining = sweep(self._job_id, grace)
        self._group.output.close()
        return remaining


def starting_environment(plan: Plan) -> dict[str, str]:
    """The environment of the program that starts the ranks: the inherited one, scrubbed, with the plan's variables."""
    inherited = {name: value for name, value in os.environ.items() if name not in plan.scrubbed}
    return inherited | plan.environment

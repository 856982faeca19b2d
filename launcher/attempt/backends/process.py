"""What the backends that start one local program have in common."""

from __future__ import annotations

import os
import signal

from launcher.attempt.group import ProcessGroup
from launcher.attempt.lifeline import own_name
from launcher.attempt.rank.output import Output
from launcher.attempt.sweep import end, family
from launcher.host import processes
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.variables import PYTHON, SUPERVISOR, own_variables
from launcher.plan.facts import without_foreign_prefix


class ProcessBackend:
    """A `launcher.attempt.backends.base.Backend` whose argv is executed on this host."""

    name = ""

    def __init__(self) -> None:
        self._group: ProcessGroup | None = None
        self._attempt: AttemptPaths | None = None
        self._before: frozenset[int] = frozenset()
        self.left_behind = 0
        """Processes that `stop` found after the program itself had ended."""

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The argv to execute, and variables that this way of starting needs; every backend has its own."""
        raise TypeError(f"{type(self).__name__} defines no command, so it cannot start {plan.job_id}")

    def start(self, plan: Plan, attempt: AttemptPaths) -> int:
        """Execute the plan's argv in the job directory, so that no module of the user's directory shadows the wrapper's."""
        processes.become_subreaper()
        self._before = frozenset(entry.pid for entry in processes.descendants(os.getpid()))
        secrets = [os.environ[name] for name in plan.secrets if name in os.environ]
        environment = starting_environment(plan, attempt)
        log = attempt.job.backend_log
        self._group = ProcessGroup.start(plan.argv, attempt.job.root, environment, log, secrets, attempt.number)
        self._attempt = attempt
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
        """End the program, then whatever else comes from it or carries the attempt's mark."""
        if self._group is None or self._attempt is None:
            return []
        self._group.stop(grace)
        self.left_behind, remaining = end(self._left, grace)
        self._group.output.drain()
        self._group.output.close()
        processes.reap_others(self._group.process.pid)
        return remaining

    def _left(self) -> list[processes.Entry]:
        """What carries the mark, and what was started since the start without it: an emptied environment hides nothing."""
        assert self._attempt is not None
        own = [entry for entry in processes.descendants(os.getpid()) if entry.pid not in self._before]
        known = {entry.pid for entry in own}
        return own + [entry for entry in family(self._attempt.job.id, self._attempt.number) if entry.pid not in known]


def starting_environment(plan: Plan, attempt: AttemptPaths) -> dict[str, str]:
    """The environment of the program that starts the ranks: the inherited one, scrubbed, with the plan's variables and marks."""
    own = without_foreign_prefix(plan.launcher_path, os.environ) if plan.launcher_path else os.environ
    inherited = {name: value for name, value in own.items() if name not in plan.scrubbed}
    return inherited | plan.environment | own_variables(attempt) | {SUPERVISOR: own_name(), PYTHON: plan.python}

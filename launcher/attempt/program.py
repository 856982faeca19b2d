"""The program that starts an attempt's ranks: mpirun, horovodrun, srun, or the only rank's wrapper itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from launcher.attempt.rank.keeper import own_name
from launcher.attempt.rank.output import LogFile, Output
from launcher.attempt.sweep import end, family
from launcher.errors import BackendError
from launcher.host import processes
from launcher.host.text import why
from launcher.jobdir import variables
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.plan.mpi import without_foreign_prefix


class Program:
    """A started program in a session of its own, and all processes of its attempt on this host.

    `launcher.attempt.supervisor` calls `poll`, `terminate` and `kill` any number of times, and `stop` once, also if the program
    has ended by itself.
    """

    def __init__(self, process: subprocess.Popen[bytes], output: Output, attempt: AttemptPaths, before: frozenset[int]) -> None:
        self._process = process
        self.output = output
        """What the program prints, for the loop that waits."""
        self._attempt = attempt
        self._before = before
        """Descendants of this process that are older than the program."""
        self.left_behind = 0
        """Processes that `stop` found after the program itself had ended."""

    @classmethod
    def start(cls, plan: Plan, attempt: AttemptPaths) -> Program:
        """Execute the plan's argv, without a shell; the system sends it TERM when this process ends, however it ends.

        Its working directory is the job directory, so that no module of the user's directory shadows the wrapper's.

        Raises:
            BackendError: if the system refuses.
        """
        processes.become_subreaper()
        before = frozenset(entry.pid for entry in processes.descendants(os.getpid()))
        secrets = [os.environ[name] for name in plan.job.secrets if name in os.environ]
        try:
            file = LogFile(attempt.job.backend_log, attempt.number)
            process = subprocess.Popen(
                plan.argv, cwd=attempt.job.root, env=starting_environment(plan, attempt), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, bufsize=0, preexec_fn=_end_with_parent,
            )  # fmt: skip
        except OSError as error:
            raise BackendError(f"{plan.argv[0]} could not be started: {why(error, plan.argv[0])}") from error
        return cls(process, Output.of(process, file, secrets), attempt, before)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code, 128 + n for signal n, or None while it runs."""
        status = self._process.poll()
        return 128 - status if status is not None and status < 0 else status

    def terminate(self) -> None:
        """Ask the program to end its ranks and itself; returns at once."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the program itself; `stop` then finds the ranks.  Returns at once."""
        self._send(signal.SIGKILL)

    def stop(self, grace: float) -> list[int]:
        """End the program, then whatever else comes from it or carries the attempt's mark.

        Args:
            grace: seconds between TERM and KILL.

        Returns:
            Ids of processes that could not be ended.
        """
        if self._process.poll() is None:
            self._send(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        self._send(signal.SIGKILL)
        self._process.wait()
        self.left_behind, remaining = end(self._left, grace)
        self.output.drain()
        self.output.close()
        processes.reap_others(self._process.pid)
        return remaining

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
            os.killpg(self._process.pid, number)

    def _left(self) -> list[processes.Entry]:
        """What carries the mark, and what was started since the start without it: an emptied environment hides nothing."""
        own = [entry for entry in processes.descendants(os.getpid()) if entry.pid not in self._before]
        known = {entry.pid for entry in own}
        return own + [entry for entry in family(self._attempt.job.id, self._attempt.number) if entry.pid not in known]


def starting_environment(plan: Plan, attempt: AttemptPaths) -> dict[str, str]:
    """The environment of the program that starts the ranks: the inherited one, scrubbed, with the plan's variables and marks."""
    program = plan.launch.program
    own = without_foreign_prefix(program, os.environ) if program else os.environ
    inherited = {name: value for name, value in own.items() if name not in plan.launch.scrubbed}
    marks = {variables.SUPERVISOR: own_name(), variables.PYTHON: plan.launch.python}
    return inherited | plan.launch.environment | variables.own_variables(attempt) | marks


def _end_with_parent() -> None:
    """Runs in the child before the program; whoever is subreaper has loaded what this needs before the fork."""
    processes.die_with_parent(signal.SIGTERM)

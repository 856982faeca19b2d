"""One rank as a plain process, without MPI."""

from __future__ import annotations

from launcher.attempt.backends.base import wrapper_command
from launcher.attempt.backends.process import ProcessBackend
from launcher.jobdir.plan import Plan


class LocalBackend(ProcessBackend):
    """Runs the rank's wrapper itself."""

    name = "local"

    def command(self, plan: Plan) -> tuple[tuple[str, ...], dict[str, str]]:
        """The wrapper, and nothing around it."""
        return wrapper_command(plan), {}

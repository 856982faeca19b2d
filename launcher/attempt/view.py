"""What a person sees of a run, and what a supervisor without a person shows."""

from __future__ import annotations

from typing import Protocol

from launcher.jobdir.metrics import Epoch, MetricsFollower
from launcher.jobdir.plan import Plan


class View(Protocol):
    """What a person sees of a run."""

    def started(self, plan: Plan) -> None:
        """The ranks are being started."""
        ...

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Called several times a second with the epochs that were finished since."""
        ...

    def stopping(self, reason: str) -> None:
        """The ranks are being stopped."""
        ...

    def warn(self, message: str) -> None:
        """Something that does not change the job's result."""
        ...

    def closed(self) -> None:
        """No further progress follows."""
        ...


class SilentView:
    """Nobody looks."""

    def started(self, plan: Plan) -> None:
        """Nothing is shown."""

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Nothing is shown."""

    def stopping(self, reason: str) -> None:
        """Nothing is shown."""

    def warn(self, message: str) -> None:
        """Nothing is shown."""

    def closed(self) -> None:
        """Nothing is shown."""

"""Following jobs that the daemon looks after, to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView
from launcher.errors import UnreachableError
from launcher.jobdir.metrics import Epoch, MetricsFollower
from launcher.jobdir.paths import JobPaths

POLL_SECONDS = 0.5
GROUP_POLL_SECONDS = 1.0
PATIENCE = 120.0
"""Seconds without an answer of the daemon after which following ends; the jobs go on."""
PAUSE = 1.0
Answer = TypeVar("Answer")


class Display(Protocol):
    """What a person sees of one job."""

    def changed(self, view: JobView) -> None:
        """The state, the attempt or the reason is another one."""
        ...

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Called at each look, with the epochs that were finished since."""
        ...

    def warn(self, message: str) -> None:
        """Something that does not change the job's result."""
        ...

    def closed(self) -> None:
        """No further progress follows."""
        ...


class GroupDisplay(Protocol):
    """What a person sees of several jobs."""

    def update(self, views: Sequence[JobView]) -> None:
        """Called at each look."""
        ...

    def warn(self, message: str) -> None:
        """Something that does not change the jobs' result."""
        ...

    def closed(self) -> None:
        """The last look is over."""
        ...


class Link:
    """A connection that outlives a daemon: where it goes away another one is started, and the question asked again."""

    def __init__(self, client: Client, warn: Callable[[str], None]) -> None:
        self._client = client
        self._warn = warn

    def ask(self, question: Callable[[Client], Answer]) -> Answer:
        """The answer to a question.

        Raises:
            UnreachableError: where there was none for `PATIENCE`.
        """
        lost: float | None = None
        while True:
            try:
                return question(self._client)
            except UnreachableError as error:
                now = time.monotonic()
                if lost is None:
                    lost = now
                    self._warn(f"{error}; what runs goes on, trying to reach the daemon again")
                elif now - lost > PATIENCE:
                    raise
                time.sleep(PAUSE)
                self._reconnect()

    def _reconnect(self) -> None:
        try:
            self._client = Client.connect(start=True)
        except UnreachableError:
            return  # asked again later


def follow(client: Client, view: JobView, display: Display) -> JobView:
    """Look at a job until it has ended; returns it as it is then.

    Raises:
        UnreachableError: where the daemon cannot be reached for long.
    """
    link = Link(client, display.warn)
    metrics = MetricsFollower(JobPaths(Path(view.dir)).metrics)
    seen: tuple[object, ...] = ()
    while True:
        present = (view.state, view.attempt, view.reason)
        if present != seen:
            seen = present
            display.changed(view)
        display.tick(metrics.poll(), metrics)
        if view.final:
            return view
        job_id = view.id
        view = link.ask(lambda daemon: daemon.wait(job_id, POLL_SECONDS))  # noqa: B023 - asked before the next turn


def follow_group(client: Client, group: str, ids: Sequence[str], display: GroupDisplay) -> list[JobView]:
    """The same for the jobs of a group; returns them in the order of ``ids``."""
    link = Link(client, display.warn)
    wanted = set(ids)
    while True:
        views = {view.id: view for view in link.ask(lambda daemon: daemon.jobs(group=group)) if view.id in wanted}
        present = [views[job_id] for job_id in ids if job_id in views]
        display.update(present)
        waiting = [view for view in present if not view.final]
        if not waiting:
            return present
        link.ask(lambda daemon: daemon.wait(waiting[0].id, GROUP_POLL_SECONDS))  # noqa: B023 - asked before the next turn

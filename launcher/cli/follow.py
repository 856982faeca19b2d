"""Following jobs to their end, and what a person sees meanwhile: moving lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeVar

from launcher.cli.texts import end_lines, placement_text, printable, state_text, table, tail, waiting_text
from launcher.daemon.http.client import Client
from launcher.daemon.http.messages import JobView
from launcher.errors import UnreachableError
from launcher.host.text import duration
from launcher.jobdir.metrics import Epoch, MetricsFollower
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import FAILED, LIVE, QUEUED, RESTARTING, RUNNING, STARTING, UNKNOWN

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

POLL_SECONDS = 0.5
GROUP_POLL_SECONDS = 1.0
PATIENCE = 120.0
"""Seconds without an answer of the daemon after which following ends; the jobs go on."""
PAUSE = 1.0
LAST_LINE_WIDTH = 60
SPARE_LINES = 6
"""Lines of the terminal that a group's table leaves free."""
_URGENCY = {state: place for place, state in enumerate((FAILED, RUNNING, STARTING, RESTARTING, UNKNOWN, QUEUED))}
Answer = TypeVar("Answer")


class Link:
    """A connection that outlives a daemon: if it goes away another one is started, and the question asked again."""

    def __init__(self, client: Client, warn: Callable[[str], None]) -> None:
        self._client = client
        self._warn = warn

    def ask(self, question: Callable[[Client], Answer]) -> Answer:
        """The answer to a question.

        Raises:
            UnreachableError: there was none for `PATIENCE`.
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


def follow(client: Client, view: JobView, stream: TextIO) -> JobView:
    """Look at a job until it has ended; returns it as it is then.

    Raises:
        UnreachableError: the daemon cannot be reached for long.
    """
    display = build_view(stream, JobPaths(Path(view.dir)))
    display.opened()
    try:
        return _follow(Link(client, display.warn), view, display)
    finally:
        display.closed()


def _follow(link: Link, view: JobView, display: PlainView | TerminalView) -> JobView:
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


def follow_group(client: Client, group: str, ids: Sequence[str], stream: TextIO) -> list[JobView]:
    """The same for the jobs of a group; returns them in the order of ``ids``."""
    display = build_group_view(stream)
    link = Link(client, display.warn)
    try:
        while True:
            views = {view.id: view for view in link.ask(lambda daemon: daemon.jobs(group=group))}
            present = [views[job_id] for job_id in ids if job_id in views]
            display.update(present)
            waiting = [view for view in present if not view.final]
            if not waiting:
                return present
            link.ask(lambda daemon: daemon.wait(waiting[0].id, GROUP_POLL_SECONDS))  # noqa: B023 - asked before the next turn
    finally:
        display.closed()


class _Plain:
    """Lines without colour."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def warn(self, message: str) -> None:
        """Print a warning."""
        self._print(printable(f"warning: {message}"))


class _Terminal:
    """Lines above what moves."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream, highlight=False, markup=False)

    def warn(self, message: str) -> None:
        """Print a warning above what moves."""
        self._console.print(printable(f"warning: {message}"), style="yellow")


class PlainView(_Plain):
    """A job in a file: one line an epoch, no colour."""

    def __init__(self, stream: TextIO, job: JobPaths) -> None:
        super().__init__(stream)
        self._job = job

    def started(self, plan: Plan) -> None:
        """Print what starts, and where its output goes."""
        self._print(f"{plan.job.id}: {placement_text(plan)}")
        self._print(f"output of the ranks: {self._job.logs}")

    def opened(self) -> None:
        """Nothing to show yet."""

    def changed(self, view: JobView) -> None:
        """Print a line for each state on the way; the end is told by whoever asked."""
        if not view.final:
            self._print(state_text(view))

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Print a line for each new epoch."""
        for epoch in epochs:
            self._print(epoch.text(metrics.time_left()))

    def stopping(self, reason: str) -> None:
        """Print why the ranks are stopped."""
        self._print(reason)

    def closed(self) -> None:
        """Nothing to put away."""


class TerminalView(_Terminal):
    """A job on a terminal: a bar with the newest epoch; before the first, beside the bar, what rank 0 last printed."""

    def __init__(self, stream: TextIO, job: JobPaths) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        super().__init__(stream)
        self._job = job
        self._progress: Bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task: TaskID = self._progress.add_task(STARTING, total=None)
        self._state = STARTING

    def started(self, plan: Plan) -> None:
        """Print the heading and show the bar."""
        self._console.print(f"{plan.job.id}: {placement_text(plan)}", style="bold")
        self._console.print(f"output of the ranks: {self._job.logs}")
        self._progress.start()

    def opened(self) -> None:
        """Show the bar."""
        self._progress.start()

    def changed(self, view: JobView) -> None:
        """Show the state in the bar; what went wrong stays readable above it."""
        self._state = view.state
        if view.reason and not view.final:
            self._console.print(state_text(view), style="yellow" if view.attempts else None)
        self._progress.update(self._task, description=self._words())

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """Move the bar; epochs stay readable above it."""
        for epoch in epochs:
            self._console.print(epoch.text(None))
        newest = metrics.latest
        if newest is None or self._state not in LIVE:
            self._progress.update(self._task, description=self._words())
        else:
            text = newest.text(metrics.time_left())
            self._progress.update(self._task, total=newest.total, completed=newest.number, description=text)

    def _words(self) -> str:
        if self._state not in LIVE:
            return self._state
        lines = tail(self._job.rank_log(0), 1)
        return f"rank 0: {lines[0][:LAST_LINE_WIDTH]}" if lines else "starting the ranks"

    def stopping(self, reason: str) -> None:
        """Print above the bar why the ranks are stopped."""
        self._console.print(reason, style="yellow")

    def closed(self) -> None:
        """Take the bar away.  Idempotent."""
        self._progress.stop()


def build_view(stream: TextIO, job: JobPaths) -> PlainView | TerminalView:
    """The view of a job that fits a stream."""
    return TerminalView(stream, job) if stream.isatty() else PlainView(stream, job)


class NewestEpochs:
    """The newest epoch of each job of a group."""

    def __init__(self) -> None:
        self._followers: dict[str, MetricsFollower] = {}

    def text(self, view: JobView) -> str:
        """One line of where a job is."""
        follower = self._followers.setdefault(view.id, MetricsFollower(JobPaths(Path(view.dir)).metrics))
        follower.poll()
        if follower.latest is None:
            return ""
        return follower.latest.text(None if view.final else follower.time_left())


class PlainGroup(_Plain):
    """A group in a file: a line for each change of a state and for each end; at last the table."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._seen: dict[str, tuple[str, int]] = {}
        self._last: Sequence[JobView] = ()

    def update(self, views: Sequence[JobView]) -> None:
        """Print what is new."""
        self._last = views
        for view in views:
            present = (view.state, view.attempt)
            if self._seen.get(view.id) == present:
                continue
            self._seen[view.id] = present
            lines = end_lines(view) if view.final else [f"{view.id}: {state_text(view)}"]
            self._print("\n".join(lines))

    def closed(self) -> None:
        """Print the table.  Idempotent."""
        if self._last:
            self._print("\n".join(group_lines(self._last, NewestEpochs(), len(self._last))))
        self._last = ()


class TerminalGroup(_Terminal):
    """A group on a terminal: a table drawn again at each look; ended jobs give way if the terminal is too low."""

    def __init__(self, stream: TextIO) -> None:
        from rich.live import Live

        super().__init__(stream)
        self._epochs = NewestEpochs()
        self._live: Live = Live(console=self._console, auto_refresh=False, transient=True)
        self._last: Sequence[JobView] = ()

    def update(self, views: Sequence[JobView]) -> None:
        """Draw the table."""
        from rich.text import Text

        self._last = views
        self._live.start()
        height = max(4, self._console.height - SPARE_LINES)
        self._live.update(Text("\n".join(group_lines(views, self._epochs, height)), no_wrap=True), refresh=True)

    def closed(self) -> None:
        """Leave the last table standing.  Idempotent."""
        self._live.stop()
        if self._last:
            self._console.print("\n".join(group_lines(self._last, self._epochs, len(self._last))))
        self._last = ()


def group_lines(views: Sequence[JobView], epochs: NewestEpochs, most: int) -> list[str]:
    """The table of a group.

    Args:
        views: its jobs.
        epochs: where they are.
        most: rows at most; jobs that have succeeded are left out first.
    """
    urgent = sorted(views, key=lambda view: _URGENCY.get(view.state, len(_URGENCY)))
    kept = {view.id for view in urgent[:most]}
    counts = {state: sum(view.state == state for view in views) for state in dict.fromkeys(view.state for view in views)}
    rows = [_row(view, epochs) for view in views if view.id in kept]
    return [
        *table([("JOB", "STATE", "TIME", "PROGRESS"), *rows]),
        f"{len(views)} jobs: " + ", ".join(f"{count} {state}" for state, count in counts.items()),
    ]


def _row(view: JobView, epochs: NewestEpochs) -> tuple[str, ...]:
    waiting = waiting_text(view)
    note = f"next attempt {waiting}" if waiting else epochs.text(view)
    if view.final and view.reason:
        note = printable(view.reason)
    return view.id, view.state, duration(view.seconds) if view.seconds is not None else "-", note


def build_group_view(stream: TextIO) -> PlainGroup | TerminalGroup:
    """The view of a group that fits a stream."""
    return TerminalGroup(stream) if stream.isatty() else PlainGroup(stream)

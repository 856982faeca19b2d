"""What a person sees while a job runs: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from launcher.cli.render import placement_text
from launcher.cli.terminal import printable, tail
from launcher.cli.texts import state_text
from launcher.daemon.http.messages import JobView
from launcher.jobdir.metrics import Epoch, MetricsFollower
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import LIVE, STARTING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LAST_LINE_WIDTH = 60


class PlainView:
    """One line an epoch, no colour."""

    def __init__(self, stream: TextIO, job: JobPaths) -> None:
        self._stream = stream
        self._job = job

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def started(self, plan: Plan) -> None:
        """Say what starts, and where its output goes."""
        self._print(f"{plan.job.id}: {placement_text(plan)}")
        self._print(f"output of the ranks: {self._job.logs}")

    def opened(self) -> None:
        """Nothing to show yet."""

    def changed(self, view: JobView) -> None:
        """A line for each state on the way; the end is told by whoever asked."""
        if not view.final:
            self._print(state_text(view))

    def tick(self, epochs: list[Epoch], metrics: MetricsFollower) -> None:
        """A line for each new epoch."""
        for epoch in epochs:
            self._print(epoch.text(metrics.time_left()))

    def stopping(self, reason: str) -> None:
        """Say so."""
        self._print(reason)

    def warn(self, message: str) -> None:
        """Say so."""
        self._print(f"warning: {message}")

    def closed(self) -> None:
        """Nothing to put away."""


class TerminalView:
    """A bar with the newest epoch, and below the bar's start what rank 0 last printed, until there is an epoch."""

    def __init__(self, stream: TextIO, job: JobPaths) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(file=stream, highlight=False, markup=False)
        self._job = job
        self._progress: Progress = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("starting", total=None)
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
        """Say so above the bar."""
        self._console.print(reason, style="yellow")

    def warn(self, message: str) -> None:
        """Say so above the bar."""
        self._console.print(printable(f"warning: {message}"), style="yellow")

    def closed(self) -> None:
        """Take the bar away.  Idempotent."""
        self._progress.stop()


def build_view(stream: TextIO, job: JobPaths) -> PlainView | TerminalView:
    """The view that fits a stream."""
    return TerminalView(stream, job) if stream.isatty() else PlainView(stream, job)

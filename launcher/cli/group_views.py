"""What a person sees of a group: a moving table on a terminal, a line for each change elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from launcher.cli.table import table
from launcher.cli.terminal import printable
from launcher.cli.texts import end_lines, state_text, waiting_text
from launcher.daemon.http.messages import JobView
from launcher.host.text import duration
from launcher.jobdir.metrics import MetricsFollower
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import FAILED, QUEUED, RESTARTING, RUNNING, STARTING, UNKNOWN

if TYPE_CHECKING:
    from rich.live import Live

SPARE_LINES = 6
"""Lines of the terminal that the table leaves free."""

_URGENCY = {state: place for place, state in enumerate((FAILED, RUNNING, STARTING, RESTARTING, UNKNOWN, QUEUED))}


class Progress:
    """The newest epoch of each job."""

    def __init__(self) -> None:
        self._followers: dict[str, MetricsFollower] = {}

    def text(self, view: JobView) -> str:
        """One line of where a job is."""
        follower = self._followers.setdefault(view.id, MetricsFollower(JobPaths(Path(view.dir)).metrics))
        follower.poll()
        if follower.latest is None:
            return ""
        return follower.latest.text(None if view.final else follower.time_left())


class PlainGroup:
    """A line for each change of a state, and for each end; at last the table."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: dict[str, tuple[str, int]] = {}
        self._last: Sequence[JobView] = ()

    def update(self, views: Sequence[JobView]) -> None:
        """Say what is new."""
        self._last = views
        for view in views:
            present = (view.state, view.attempt)
            if self._seen.get(view.id) == present:
                continue
            self._seen[view.id] = present
            lines = end_lines(view) if view.final else [f"{view.id}: {state_text(view)}"]
            print("\n".join(lines), file=self._stream, flush=True)

    def warn(self, message: str) -> None:
        """Say so."""
        print(printable(f"warning: {message}"), file=self._stream, flush=True)

    def closed(self) -> None:
        """Print the table.  Idempotent."""
        if self._last:
            print("\n".join(group_lines(self._last, Progress(), len(self._last))), file=self._stream, flush=True)
        self._last = ()


class TerminalGroup:
    """A table that is drawn again at each look; what has ended gives way where the terminal is too low."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False, markup=False)
        self._progress = Progress()
        self._live: Live = Live(console=self._console, auto_refresh=False, transient=True)
        self._last: Sequence[JobView] = ()

    def update(self, views: Sequence[JobView]) -> None:
        """Draw the table."""
        from rich.text import Text

        self._last = views
        self._live.start()
        height = max(4, self._console.height - SPARE_LINES)
        self._live.update(Text("\n".join(group_lines(views, self._progress, height)), no_wrap=True), refresh=True)

    def warn(self, message: str) -> None:
        """Say so above the table."""
        self._console.print(printable(f"warning: {message}"), style="yellow")

    def closed(self) -> None:
        """Leave the last table standing.  Idempotent."""
        self._live.stop()
        if self._last:
            self._console.print("\n".join(group_lines(self._last, self._progress, len(self._last))))
        self._last = ()


def group_lines(views: Sequence[JobView], progress: Progress, most: int) -> list[str]:
    """The table of a group.

    Args:
        views: its jobs.
        progress: where they are.
        most: rows at most; jobs that have succeeded are left out first.
    """
    urgent = sorted(views, key=lambda view: _URGENCY.get(view.state, len(_URGENCY)))
    kept = {view.id for view in urgent[:most]}
    shown = [view for view in views if view.id in kept]
    counts = {state: sum(view.state == state for view in views) for state in dict.fromkeys(view.state for view in views)}
    lines = table([("JOB", "STATE", "TIME", "PROGRESS"), *(_row(view, progress) for view in shown)])
    return [*lines, f"{len(views)} jobs: " + ", ".join(f"{count} {state}" for state, count in counts.items())]


def _row(view: JobView, progress: Progress) -> tuple[str, ...]:
    waiting = waiting_text(view)
    note = f"next attempt {waiting}" if waiting else progress.text(view)
    if view.final and view.reason:
        note = printable(view.reason)
    return view.id, view.state, duration(view.seconds) if view.seconds is not None else "-", note


def build_group_view(stream: TextIO) -> PlainGroup | TerminalGroup:
    """The view that fits a stream."""
    return TerminalGroup(stream) if stream.isatty() else PlainGroup(stream)

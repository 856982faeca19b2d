"""What several commands print: pure functions from data to lines, tables, colours, and text made safe for a terminal.

No library is needed: `ls` must answer at once, with a thousand jobs too.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

from launcher.host.text import counted, duration
from launcher.jobdir.logs import end_of, of_last_attempt
from launcher.jobdir.words import CANCELLED, FAILED, RESTARTING, RUNNING, STARTING, SUCCEEDED, UNKNOWN

if TYPE_CHECKING:
    from pathlib import Path

    from launcher.daemon.http.messages import JobView
    from launcher.jobdir.marks import RankMark
    from launcher.jobdir.paths import JobPaths
    from launcher.jobdir.plan import Plan

TAIL_LINES = 20
HOSTS_SHOWN = 4
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = {SUCCEEDED: "32", FAILED: "31", CANCELLED: "33", UNKNOWN: "35", RUNNING: "36", STARTING: "36", RESTARTING: "33"}


def printable(text: str) -> str:
    """Text without the control characters that would move a terminal's cursor or change its colours."""
    return _CONTROL.sub("", text).encode("utf-8", "backslashreplace").decode("utf-8")


def complain(text: str) -> None:
    """Print a line on stderr, safe for a terminal; bytes that are no text are shown as escapes."""
    print(printable(f"hvdgrab-launch: {text}"), file=sys.stderr, flush=True)


def warn_of(texts: Iterable[str]) -> None:
    """Print warnings on stderr."""
    for text in texts:
        complain(f"warning: {text}")


def tail(path: Path, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a log, safe for a terminal; empty if there is no log."""
    return last_lines(end_of(path), lines)


def last_lines(data: bytes, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of what was read from a log, safe for a terminal."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return [printable(line) for line in text.rstrip().split("\n")[-lines:]] if text.strip() else []


def colourful(stream: TextIO) -> bool:
    """Whether a stream takes colours: a terminal, and nobody asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns of equal width; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def painted(line: str, state: str) -> str:
    """A line of a table with the word of its state in that state's colour."""
    code = _COLOURS.get(state)
    return line.replace(f"  {state}", f"  \x1b[{code}m{state}\x1b[0m", 1) if code else line


def facts(pairs: Sequence[tuple[str, object]]) -> list[str]:
    """A line for each name with a value, the values below each other."""
    present = [(name, value) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in present), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in present]


def moment(seconds: float | None) -> str | None:
    """A Unix time for people, local; None if it is unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else None


def iso(seconds: float) -> str:
    """A Unix time for programs and people: ISO 8601, local, to the millisecond, with the zone's offset."""
    from datetime import datetime

    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def waiting_text(view: JobView, now: float | None = None) -> str | None:
    """When the next attempt begins; None if none is waited for."""
    if view.next_try is None or view.final:
        return None
    left = view.next_try - (time.time() if now is None else now)
    return f"in {duration(left)}" if left > 0 else "now"


def time_text(view: JobView) -> str | None:
    """From submission to the end; while it runs, since its first attempt began; None if it has not begun."""
    if view.seconds is not None:
        return duration(view.seconds)
    return duration(max(0.0, time.time() - view.started)) if view.started and not view.final else None


def state_text(view: JobView) -> str:
    """State and reason in one line."""
    text = f"{view.state} (attempt {view.attempt})" if view.attempt > 1 and not view.final else view.state
    waiting = waiting_text(view)
    text += f", next attempt {waiting}" if waiting else ""
    if not view.reason:
        return text
    reason = printable(view.reason)
    return reason if reason.startswith(view.state) else f"{text}: {reason}"  # the word is not printed twice


def end_lines(view: JobView) -> list[str]:
    """The end of a job."""
    took = f" after {duration(view.seconds)}" if view.seconds is not None else ""
    tries = f", {view.attempts} attempts" if view.attempts > 1 else ""
    lines = [f"{view.id}: {view.state}{took}{tries}, exit code {view.exit_code}"]
    return [*lines, f"reason: {printable(view.reason)}"] if view.reason else lines


def next_commands(target: str, *, final: bool, failed: bool = False, group: bool = False, measured: bool = True) -> list[str]:
    """What a user may want to type next.

    Args:
        target: a job's or a group's id.
        final: whether it has ended.
        failed: whether it ended badly.
        group: whether it is a group's.
        measured: whether there is anything to report.
    """
    if final:
        again = [(f"hvdgrab-launch retry {target}", "run it again, in the same directory")] if failed else []
        words = "the variants compared" if group else "tables and plots"
        report = [(f"hvdgrab-launch report {target}", words)] if measured else []
        commands = [(f"hvdgrab-launch show {target}", "how it went"), *report, *again]
    else:
        commands = [
            *([] if group else [(f"hvdgrab-launch logs -f {target}", "its output")]),
            (f"hvdgrab-launch show {target}", "where it is"),
            (f"hvdgrab-launch wait {target}", "wait for its end"),
            (f"hvdgrab-launch cancel {target}", "stop it"),
        ]
    return ["next:", *(f"  {line}" for line in facts(commands))]


def placement_text(plan: Plan) -> str:
    """Ranks, backend, hosts or cores, binding and threads in one line."""
    from launcher.plan.mpi import NAMES, label

    placement, launch = plan.placement, plan.launch
    version = f" ({label(launch.mpi_flavour, launch.mpi_version)})" if launch.mpi_flavour in NAMES else ""
    server = ", one of them the order server" if placement.server_ranks else ""
    shared = ", oversubscribed: they take turns" if placement.oversubscribed else ""
    return (
        f"{counted(placement.ranks, 'rank')}{server} by {launch.backend}{version}{_place(plan)}{shared}; "
        f"binding {placement.binding}, {counted(placement.threads_per_rank, 'thread')} a rank"
    )


def _place(plan: Plan) -> str:
    hosts = plan.placement.hosts
    if hosts:
        names = ", ".join(f"{host.name} ({host.slots})" for host in hosts[:HOSTS_SHOWN])
        return f" on {names}" + (f" and {len(hosts) - HOSTS_SHOWN} more hosts" if len(hosts) > HOSTS_SHOWN else "")
    if plan.launch.backend in ("slurm", "srun"):
        return " on the nodes that SLURM gives" if plan.launch.backend == "slurm" else " in this allocation"
    return f" on {counted(plan.placement.cores, 'core')}"


def failure_lines(job: JobPaths, mark: RankMark | None) -> list[str]:
    """The last lines of what failed first in the last attempt: of the rank, or of the backend if no rank failed."""
    path = job.backend_log if mark is None else job.rank_log(mark.rank)
    title = "what started the ranks said"
    if mark is not None:
        title = f"the last lines of rank {mark.rank}" if mark.stopped else f"rank {mark.rank} failed first; its last lines"
    own = last_lines(of_last_attempt(end_of(path)))
    if mark is not None and not own:
        return [f"--- rank {mark.rank} {'' if mark.stopped else 'failed first; it '}has printed nothing ({path})", "---"]
    return [f"--- {title} ({path}):", *own, "---"] if own else []

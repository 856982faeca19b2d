"""Texts about jobs that several commands print: pure functions from data to lines."""

from __future__ import annotations

import time
from datetime import datetime

from launcher.cli.table import facts
from launcher.cli.terminal import printable
from launcher.daemon.http.messages import JobView
from launcher.host.text import duration


def moment(seconds: float | None) -> str | None:
    """A Unix time for people, local; None where it is unknown."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else None


def iso(seconds: float) -> str:
    """A Unix time for programs and people: ISO 8601, local, to the millisecond, with the zone's offset."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="milliseconds")


def attempt_text(view: JobView) -> str | None:
    """Which attempt it is at, where that says something."""
    return f"{view.attempt}" if view.attempt > 1 or view.attempts > 1 else None


def waiting_text(view: JobView, now: float | None = None) -> str | None:
    """When the next attempt begins."""
    if view.next_try is None or view.final:
        return None
    left = view.next_try - (time.time() if now is None else now)
    return f"in {duration(left)}" if left > 0 else "now"


def state_text(view: JobView) -> str:
    """State and reason in one line."""
    parts = [view.state]
    if view.attempt > 1 and not view.final:
        parts.append(f"(attempt {view.attempt})")
    text = " ".join(parts)
    waiting = waiting_text(view)
    text += f", next attempt {waiting}" if waiting else ""
    if not view.reason:
        return text
    return printable(view.reason) if view.reason.startswith(view.state) else f"{text}: {printable(view.reason)}"


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

"""What a supervisor concludes from clocks: the time limit, a training that makes no progress, ranks and hosts that show no life.

It measures with its own clock how long something has not changed, and never compares clocks of different hosts.  Time in which
the supervisor itself could not look (a suspended machine, a file system that does not answer) is not held against anybody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.attempt.rank.keeper import HEARTBEAT
from launcher.host.clock import Unchanged
from launcher.host.processes import node_name
from launcher.host.text import duration
from launcher.jobdir import variables, words
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop

MISSED_BEATS = 12
"""Heartbeats that a rank may miss: a minute by default, as long as some file systems take to show a change."""
START_SECONDS = 600.0
"""Seconds within which the first rank must have been started."""
LONGEST_GAP = 5.0
"""Seconds between two looks of which at most so many count."""
Stamp = tuple[int, ...]


class Watch:
    """One attempt's clocks.  All times are seconds of one monotonic clock, passed in."""

    def __init__(self, attempt: AttemptPaths, plan: Plan, host: str, now: float) -> None:
        """``host``: the supervisor's own."""
        self._attempt = attempt
        self._plan = plan
        self._host = host
        self._begun = self._last = now
        self._stamp = self._progress_stamp()
        self._moved = now
        self._observed = 0.0
        self._beats = Unchanged()
        self._silence = MISSED_BEATS * variables.seconds_in(variables.HEARTBEAT_SECONDS, HEARTBEAT)
        self.progressed = False
        """Whether the training has shown any progress in this attempt."""

    def look(self, now: float, marks: Sequence[RankMark | None]) -> Stop | None:
        """Why the attempt must be stopped, or None."""
        gap = now - self._last
        self._observed += min(gap, LONGEST_GAP)
        if gap > LONGEST_GAP:
            self._moved += gap - LONGEST_GAP
        self._last = now
        self._note_progress(now)
        return self._over_time(now) or self._not_started(now, marks) or self._silent(marks) or self._no_progress(now)

    def _note_progress(self, now: float) -> None:
        stamp = self._progress_stamp()
        if stamp != self._stamp:
            self._stamp, self._moved = stamp, now
            self.progressed = True

    def _progress_stamp(self) -> Stamp:
        return (*_changed(self._attempt.progress), *_changed(self._attempt.job.metrics))

    def _over_time(self, now: float) -> Stop | None:
        limit = self._plan.limits.time_limit
        if limit is None or now - self._begun < limit:
            return None
        return Stop(words.TIME_LIMIT, "the supervisor", f"the time limit of {duration(limit)} was reached")

    def _not_started(self, now: float, marks: Sequence[RankMark | None]) -> Stop | None:
        if any(marks) or now - self._begun < START_SECONDS:
            return None
        return Stop(words.NOT_STARTED, "the supervisor", f"no rank was started within {duration(START_SECONDS)}")

    def _no_progress(self, now: float) -> Stop | None:
        after = self._plan.limits.hang_after
        if after is None or now - self._moved < after:
            return None
        return Stop(words.HANG, "the supervisor", f"no progress of the training for {duration(after)}")

    def _silent(self, marks: Sequence[RankMark | None]) -> Stop | None:
        running = [mark for mark in marks if mark is not None and mark.exit_code is None]
        silent = [mark for mark in running if self._silent_for(mark) > self._silence]
        if not silent:
            return None
        lost = lost_hosts(running, {mark.rank for mark in silent}, self._host)
        if lost:
            names = ", ".join(lost)
            reason = f"no sign of life from {names} for {duration(self._silence)}"
            return Stop(words.LOST_NODE, "the supervisor", reason, bad_hosts=lost)
        first = silent[0]
        reason = f"rank {first.rank} on {first.host} has shown no sign of life for {duration(self._silence)}"
        return Stop(words.HANG, "the supervisor", reason, bad_hosts=(first.host,))

    def _silent_for(self, mark: RankMark) -> float:
        """How long its mark has not changed; a mark that is not there any more says nothing."""
        changed = _changed(self._attempt.rank_mark(mark.rank))
        if not changed:
            self._beats.forget(mark.rank)
            return 0.0
        return self._beats.seconds(mark.rank, (mark.heartbeat, changed), self._observed)


def lost_node(marks: Sequence[RankMark | None], names: Mapping[str, str], unknown: Sequence[str]) -> Stop | None:
    """Why the program that started the ranks ended by itself, if a host was lost; None if none was.

    Args:
        marks: by rank, after the end.
        names: how each host of the spec names itself, by its name in the spec.
        unknown: hosts, as the spec names them, that could not be asked after the end.
    """
    if any(mark is not None and mark.failed and not mark.stopped for mark in marks):
        return None
    known = [mark for mark in marks if mark is not None]
    away = {names[host] for host in unknown}
    cut_off = {mark.rank for mark in known if mark.stop_cause == words.STARTER_GONE and mark.host != node_name()}
    silent = cut_off | {mark.rank for mark in known if mark.exit_code is None and mark.host in away}
    lost = lost_hosts(known, silent, node_name())
    if not lost:
        return None
    shown = ", ".join(spec_names(lost, names))
    return Stop(words.LOST_NODE, "the supervisor", f"the connection to {shown} was lost", bad_hosts=lost)


def lost_hosts(running: Sequence[RankMark], silent: set[int], own: str) -> tuple[str, ...]:
    """The other hosts of which no running rank shows life."""
    by_host: dict[str, list[bool]] = {}
    for mark in running:
        by_host.setdefault(mark.host, []).append(mark.rank in silent)
    return tuple(sorted(host for host, all_silent in by_host.items() if host != own and all(all_silent)))


def spec_names(hosts: Sequence[str], known: Mapping[str, str]) -> tuple[str, ...]:
    """Hosts as the spec names them.

    Args:
        hosts: as they name themselves, which is what marks hold.
        known: how each host of the spec names itself, by its name in the spec.
    """
    names = {own: name for name, own in known.items()}
    return tuple(names.get(host, host) for host in hosts)


def _changed(path: Path) -> Stamp:
    try:
        status = os.stat(path)  # noqa: PTH116 - called often
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size

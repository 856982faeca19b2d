"""What SLURM says about all jobs of this user: one cycle of questions an interval, however many jobs there are.

A cycle asks squeue, then sacct about the jobs that the queue holds no more, then scontrol about those that failed.  It runs in a
thread of its own, so that a controller that does not answer holds nobody up: what has become of the jobs is then not known, which
is something else than that they are gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from launcher.slurm.causes import killed_by
from launcher.slurm.commands import SACCT_FORMAT, SQUEUE_FORMAT, TIMEOUT, NoAnswer, Reach, Row, parse_sacct, parse_squeue

STALE_AFTER = 3
"""Intervals after which an answer says nothing about the present any more."""
ASK_SECONDS = 3.0
"""Seconds that SLURM has to say by which signal a job ended."""
ASK_AT_ONCE = 8
"""Such questions at the same time."""


@dataclass(frozen=True)
class Snapshot:
    """The answers of one cycle."""

    begun: float
    """When the cycle began, on the monotonic clock: what was submitted later is not in it."""
    rows: Mapping[str, Row] = field(default_factory=dict)
    """All jobs of the queue, by SLURM's id."""
    ended: Mapping[str, Row] = field(default_factory=dict)
    """Watched jobs that the queue holds no more, from accounting."""
    killed_by: Mapping[str, str] = field(default_factory=dict)
    """The signals that ended the batch scripts of watched jobs."""
    named: Mapping[str, Row] = field(default_factory=dict)
    """Jobs that accounting holds under one of the names in `looked_for`, by name."""
    looked_for: frozenset[str] = frozenset()
    """Names for which accounting, if the cluster has any, was looked through."""
    clusters: tuple[str, ...] = ()
    """All clusters that accounting knows; empty if that was not asked, or not answered."""
    fault: str | None = None
    """Why there is no answer."""


class QueueWatcher:
    """The queue of one cluster, as one user sees it."""

    def __init__(self, reach: Reach, interval: float) -> None:
        """A watcher that has asked nothing yet.

        Args:
            reach: how its cluster is asked: one cluster, as job ids are each cluster's own.
            interval: least seconds between two cycles.
        """
        self._interval = interval
        self._ask = reach.ask
        self._lock = threading.Lock()
        self._cycle: threading.Thread | None = None
        self._asked_at = float("-inf")
        self._good: Snapshot | None = None
        self._last: Snapshot | None = None
        self._accounting: bool | None = None
        self._watched: Mapping[str, Callable[[], bool]] = {}
        self._signals: dict[str, str | None] = {}
        self._names: frozenset[str] = frozenset()
        self._wants_clusters = False

    @property
    def asked(self) -> bool:
        """Whether any cycle has come to an end yet."""
        return self._last is not None

    def watch(self, jobs: Mapping[str, Callable[[], bool]]) -> None:
        """Name the jobs whose ends are of interest.

        Args:
            jobs: by SLURM's id, whether the end of the job is known without SLURM; another thread asks that.
        """
        self._watched = dict(jobs)

    def look_for(self, name: str) -> None:
        """Have accounting looked through for a name from the next cycle on, until `found`."""
        self._names |= {name}

    def found(self, name: str) -> None:
        """Look no longer for a name."""
        self._names -= {name}

    def want_clusters(self) -> None:
        """Have the next cycles ask which clusters there are."""
        self._wants_clusters = True

    def snapshot(self, patience: float) -> Snapshot:
        """The newest answers; begins another cycle if the interval is over.

        Args:
            patience: seconds to wait for a cycle that is under way.
        """
        with self._lock:
            due = time.monotonic() - self._asked_at >= self._interval
            if due and (self._cycle is None or not self._cycle.is_alive()):
                self._asked_at = time.monotonic()
                self._cycle = threading.Thread(target=self._query, daemon=True, name="squeue")
                self._cycle.start()
            cycle = self._cycle
        if cycle is not None:
            cycle.join(patience)
        return self._newest()

    def _newest(self) -> Snapshot:
        with self._lock:
            good, last = self._good, self._last
            fresh = max(STALE_AFTER * self._interval, TIMEOUT)
            if good is not None and (last is good or last is None) and time.monotonic() - good.begun <= fresh:
                return good
            if last is not None and last.fault is not None:
                return last
            return Snapshot(self._asked_at, fault="SLURM is being asked about the queue, and has not answered yet")

    def _query(self) -> None:
        begun = time.monotonic()
        try:
            snapshot = self._asked(begun)
        except NoAnswer as error:
            snapshot = Snapshot(begun, fault=f"SLURM does not answer: {error}")
        with self._lock:
            self._last = snapshot
            if snapshot.fault is None:
                self._good = snapshot

    def _asked(self, begun: float) -> Snapshot:
        """Ask everything, each question only if it is needed.  Raises NoAnswer if squeue gives none."""
        answer = self._ask(("squeue", "-u", str(os.getuid()), "-t", "all", "-o", SQUEUE_FORMAT))
        if not answer.ok:
            raise NoAnswer(answer.complaint)
        rows = parse_squeue(answer.stdout)
        watched, names = self._watched, self._names
        ended = self._accounted([number for number, known in watched.items() if number not in rows and not known()])
        failed = [number for number, known in watched.items() if _failed(rows.get(number) or ended.get(number)) and not known()]
        named = self._looked_through(names)
        clusters = self._ask(("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster")) if self._wants_clusters else None
        return Snapshot(
            begun, rows, ended, self._killed(failed), named or {}, names if named is not None else frozenset(),
            tuple(clusters.stdout.split()) if clusters is not None and clusters.ok else (),
        )  # fmt: skip

    def _accounted(self, missing: Collection[str]) -> dict[str, Row]:
        if not missing or not self._has_accounting():
            return {}
        answer = self._ask(("sacct", "-X", "-P", "-j", ",".join(sorted(missing)), "-o", SACCT_FORMAT))
        try:
            return parse_sacct(answer.stdout) if answer.ok else {}
        except NoAnswer:
            return {}

    def _looked_through(self, names: Collection[str]) -> dict[str, Row] | None:
        """What accounting holds under names since yesterday; None if it does not answer."""
        has_accounting = self._has_accounting() if names else False
        if not has_accounting:
            return None if has_accounting is None else {}
        answer = self._ask(("sacct", "-X", "-P", f"--name={','.join(sorted(names))}", "-S", "now-1days", "-o", SACCT_FORMAT))
        try:
            return {row.name: row for row in parse_sacct(answer.stdout).values()} if answer.ok else None
        except NoAnswer:
            return None

    def _has_accounting(self) -> bool | None:
        """Whether the cluster keeps records of ended jobs, asked until it is answered; None if that is not known."""
        if self._accounting is None:
            answer = self._ask(("scontrol", "show", "config"))
            line = next((line for line in answer.stdout.splitlines() if line.startswith("AccountingStorageType")), None)
            if answer.ok and line is not None:
                self._accounting = not line.rstrip().endswith(("none", "(null)"))
        return self._accounting

    def _killed(self, failed: Iterable[str]) -> dict[str, str]:
        """The signals that ended jobs, each asked for once."""
        known = {number: self._signals[number] for number in failed if number in self._signals}
        new = [number for number in failed if number not in known]
        if new:
            with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
                known |= dict(zip(new, pool.map(self._signal, new), strict=True))
        self._signals = known
        return {number: name for number, name in known.items() if name is not None}

    def _signal(self, number: str) -> str | None:
        return killed_by(self._ask(("scontrol", "--oneliner", "show", "job", number), timeout=ASK_SECONDS))


def _failed(row: Row | None) -> bool:
    return row is not None and row.state.name == "FAILED"

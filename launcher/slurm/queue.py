"""What the scheduler says about all jobs of this user: one query per interval, however many jobs there are.

The query runs in a thread of its own, so that a controller that does not answer holds nobody up: it is then not known what has
become of the jobs, which is something else than that they are gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from launcher.host.program import Answer
from launcher.slurm.answers import SACCT_FORMAT, SQUEUE_FORMAT, NoAnswer, Row, parse_sacct, parse_squeue
from launcher.slurm.commands import TIMEOUT, Reach

Asker = Callable[[Sequence[str]], Answer]
STALE_AFTER = 3
"""Intervals after which an answer says nothing about the present any more."""


@dataclass(frozen=True)
class Snapshot:
    """One answer."""

    begun: float
    """When the question was asked, on the monotonic clock: what was submitted later is not in it."""
    rows: dict[str, Row] = field(default_factory=dict)
    ended: dict[str, Row] = field(default_factory=dict)
    """Jobs that the queue does not hold any more, from accounting."""
    fault: str | None = None
    """Why there is no answer."""


class Queue:
    """The queue of one cluster, as one user sees it."""

    def __init__(self, reach: Reach, interval: float, ask: Asker | None = None) -> None:
        """A queue.

        Args:
            reach: how its cluster is asked: one cluster, as job ids are each cluster's own.
            interval: least seconds between two questions.
            ask: runs a program; by default for real.
        """
        self._interval = interval
        self._ask: Asker = ask or reach.ask
        self._lock = threading.Lock()
        self._running: threading.Thread | None = None
        self._asked_at = float("-inf")
        self._good: Snapshot | None = None
        self._last: Snapshot | None = None
        self._accounting: bool | None = None
        self._missing: frozenset[str] = frozenset()

    @property
    def asked(self) -> bool:
        """Whether any question has come to an end yet."""
        return self._last is not None

    def snapshot(self, patience: float) -> Snapshot:
        """The newest answer; asks again where the interval is over.

        Args:
            patience: seconds to wait for an answer that is on its way.
        """
        with self._lock:
            due = time.monotonic() - self._asked_at >= self._interval
            if due and (self._running is None or not self._running.is_alive()):
                self._asked_at = time.monotonic()
                self._running = threading.Thread(target=self._query, daemon=True, name="squeue")
                self._running.start()
            running = self._running
        if running is not None:
            running.join(patience)
        return self._newest()

    def _newest(self) -> Snapshot:
        with self._lock:
            now = time.monotonic()
            good, last = self._good, self._last
            fresh = max(STALE_AFTER * self._interval, TIMEOUT)
            if good is not None and (last is good or last is None) and now - good.begun <= fresh:
                return good
            if last is not None and last.fault is not None:
                return last
            return Snapshot(self._asked_at, fault="SLURM is being asked about the queue, and has not answered yet")

    def _query(self) -> None:
        begun = time.monotonic()
        argv = ("squeue", "-u", str(os.getuid()), "-t", "all", "-o", SQUEUE_FORMAT)
        answer = self._ask(argv)
        try:
            if not answer.ok:
                raise NoAnswer(answer.complaint)
            snapshot = Snapshot(begun, parse_squeue(answer.stdout), self._accounted())
        except NoAnswer as error:
            snapshot = Snapshot(begun, fault=f"SLURM does not answer: {error}")
        with self._lock:
            self._last = snapshot
            if snapshot.fault is None:
                self._good = snapshot

    def wonder(self, job_ids: frozenset[str]) -> None:
        """Name jobs that the queue has forgotten and whose end is of interest: the next query asks accounting for all of them."""
        self._missing = job_ids

    def _accounted(self) -> dict[str, Row]:
        if not self._missing or not self.accounting():
            return {}
        argv = ("sacct", "-X", "-P", "-j", ",".join(sorted(self._missing)), "-o", SACCT_FORMAT)
        answer = self._ask(argv)
        try:
            return parse_sacct(answer.stdout) if answer.ok else {}
        except NoAnswer:
            return {}

    def ask_accounting_by_name(self, name: str) -> str:
        """What accounting holds under a job's name since yesterday, as `launcher.slurm.answers.parse_sacct` reads it."""
        argv = ("sacct", "-X", "-P", f"--name={name}", "-S", "now-1days", "-o", SACCT_FORMAT)
        answer = self._ask(argv)
        if not answer.ok:
            raise NoAnswer(answer.complaint)
        return answer.stdout

    def accounting(self) -> bool:
        """Whether the cluster keeps records of ended jobs; asked once."""
        if self._accounting is None:
            answer = self._ask(("scontrol", "show", "config"))
            if not answer.ok or "AccountingStorageType" not in answer.stdout:
                return False
            line = next(line for line in answer.stdout.splitlines() if line.startswith("AccountingStorageType"))
            self._accounting = not line.rstrip().endswith(("none", "(null)"))
        return self._accounting

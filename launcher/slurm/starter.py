"""Supervisors inside jobs of SLURM, submitted by sbatch.

The batch script runs one attempt after the other for as long as SLURM puts the job back into its queue (`launcher.slurm.batch`),
so one handle may stand for several attempts, of which the newest counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.attempt.starter import Alive, Gone, Handle, Seen, Unknown, Unreachable
from launcher.host.clock import Unchanged
from launcher.jobdir import variables
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import LOST_NODE
from launcher.slurm import submission
from launcher.slurm.causes import cause_of
from launcher.slurm.commands import Reach, Row
from launcher.slurm.queue import QueueWatcher, Snapshot
from launcher.slurm.script import asked_of, token
from launcher.slurm.submission import Submission, Unanswered

if TYPE_CHECKING:
    from launcher.jobdir.plan import Plan

INTERVAL = 10.0
"""Seconds between two questions to the scheduler."""
PATIENCE = 1.0
"""Seconds to wait for an answer that is on its way."""
START_PATIENCE = 2.0
"""The same before a submission, which is otherwise put off for longer."""
SUBMIT_PATIENCE = 5.0
"""Seconds to wait for sbatch: it goes on after them, and is asked about later."""
SETTLE = 20.0
"""Seconds for which a submission that was interrupted is still looked for: it may lie unread at the controller."""
SILENT = 8.0
"""Seconds for which a controller that has not answered sbatch is left alone: many jobs would each wait for it."""
QUIET = 20.0
"""Seconds without a sign of life from a supervisor that SLURM does not know, before it counts as gone."""

Key = tuple[str | None, str]
"""Cluster and job id: each cluster counts for itself."""


class SlurmStarter:
    """A `launcher.attempt.starter.Starter` whose supervisors run in jobs of SLURM."""

    name = "slurm"

    def __init__(
        self, interval: float | None = None, *, settle: float = SETTLE, quiet: float = QUIET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.interval = variables.seconds_in(variables.SLURM_SECONDS, INTERVAL) if interval is None else interval
        self._settle = settle
        self._quiet = quiet
        self._clock = clock
        self._watchers: dict[Reach, QueueWatcher] = {}
        """One a cluster."""
        self._submitted: dict[Key, float] = {}
        """When jobs were submitted by this process: an answer to an earlier question does not hold them."""
        self._silent: dict[str, tuple[float, str]] = {}
        """Until when clusters that did not answer sbatch are spared, and what it said, by their reach."""
        self._sbatch: dict[tuple[str, int], Sbatch] = {}
        """Calls of sbatch whose outcome was not taken yet, by job directory and attempt."""
        self._lookups: dict[str, Lookup] = {}
        """The searches for interrupted submissions, by token."""
        self._lives = Unchanged()
        """Signs of life of supervisors that SLURM does not know."""

    def start(self, job: JobPaths, attempt: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
        """Submit the attempt, unless it is in the queue already."""
        key = str(job.root), attempt
        reach = Reach.of(environment, asked_of(plan).clusters)
        if key not in self._sbatch:
            found = self.find(job, attempt)
            if found is not None:
                return found
            self._check_answers(reach)
            self._end_lookup(token(plan, attempt))  # only now: whoever has found nothing asks again before they start
            self._sbatch[key] = Sbatch(partial(submission.submit, job, attempt, plan, environment), reach.name)
        try:
            return self._submission(key, SUBMIT_PATIENCE)
        except Unanswered as error:
            self._silent[reach.name] = self._clock() + SILENT, error.said
            raise Unanswered(error.said, reach.name) from error

    def _submission(self, key: tuple[str, int], patience: float) -> Handle:
        """What a call of sbatch has brought; raises what it has raised, and Unanswered while it goes on."""
        call = self._sbatch[key]
        try:
            handle = call.result(patience)
        finally:
            if not call.is_alive():
                del self._sbatch[key]
        self._submitted[_key(handle)] = self._clock()
        return handle

    def _check_answers(self, reach: Reach) -> None:
        """Raise Unreachable if sbatch would only keep everybody waiting."""
        until, said = self._silent.get(reach.name, (float("-inf"), ""))
        if self._clock() < until:
            raise Unreachable(f"it was not submitted yet: another job a moment ago met with: {said}", reach.name)
        watcher = self._watchers.get(reach)
        if watcher is None or not watcher.asked or watcher.snapshot(0.0).fault is None:
            return
        if (fault := watcher.snapshot(START_PATIENCE).fault) is not None:
            raise Unreachable(f"it was not submitted yet: {fault}", reach.name)

    def find(self, job: JobPaths, attempt: int) -> Handle | None:
        """What is on record, else what the queue and accounting hold under the attempt's token."""
        key = str(job.root), attempt
        if key in self._sbatch and not self._sbatch[key].refused:  # a refusal is raised by `start`
            try:
                return self._submission(key, 0.0)
            except Unanswered:
                if key in self._sbatch:
                    raise
        paths = job.attempt(attempt)
        wanted = Submission.read(paths)
        known = submission.known_handle(paths)
        if wanted is None or known is not None:
            return known
        lookup = self._lookups.setdefault(wanted.token, Lookup(wanted, attempt, self._settle))
        found = lookup.verdict(self._watcher, self._clock())
        if found is None:
            return None
        self._end_lookup(wanted.token)
        found.write(paths)
        return found.handle(paths)

    def _end_lookup(self, mark: str) -> None:
        lookup = self._lookups.pop(mark, None)
        if lookup is not None:
            lookup.end()

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, Seen]:
        """What the queue says of all jobs, in one cycle of questions per cluster and interval."""
        groups: dict[QueueWatcher, dict[str, Handle]] = {}
        for job_id, handle in handles.items():
            groups.setdefault(self._watcher(_reach(handle)), {})[job_id] = handle
        seen: dict[str, Seen] = {}
        for watcher, members in groups.items():
            watcher.watch({handle["job_id"]: partial(_end_written, handle) for handle in members.values()})
            snapshot = watcher.snapshot(PATIENCE)
            seen |= {job_id: _at_newest(self._judge(handle, snapshot), handle) for job_id, handle in members.items()}
        return seen

    def _judge(self, handle: Handle, snapshot: Snapshot) -> Seen:
        number = handle["job_id"]
        row = snapshot.rows.get(number) or snapshot.ended.get(number)
        if snapshot.fault is not None:
            return Unknown(snapshot.fault)
        if row is not None and row.state.phase == "over":
            return _gone(handle, row, snapshot.killed_by.get(number))
        if number in snapshot.rows and row is not None:
            return Alive(f"job {number} {row.detail}", running=row.state.phase in ("running", "ending"), note=row.note)
        if snapshot.begun <= self._submitted.get(_key(handle), float("-inf")):
            return Alive(f"job {number} was submitted", running=False)
        if _end_written(handle):
            return Gone()
        stamp = _stamp(JobPaths(Path(handle["dir"])))  # perhaps only the controller lost its memory, and the ranks go on
        if self._lives.seconds(_key(handle), stamp, self._clock()) < self._quiet:
            return Unknown(f"SLURM does not know job {number} any more; waiting to see whether it still shows life")
        return Gone(None, f"SLURM does not know job {number} any more, and it shows no life")

    def stop(self, handle: Handle, kill: bool) -> None:
        """Cancel the job if it waits or is suspended, tell its supervisor to stop if it runs; with ``kill``, cancel it anyway."""
        threading.Thread(target=self._cancel, args=(handle, kill), daemon=True, name="scancel").start()

    def _cancel(self, handle: Handle, kill: bool) -> None:
        reach = _reach(handle)
        if not kill:
            for state in ("PENDING", "SUSPENDED"):  # no signal reaches what is suspended
                reach.ask(("scancel", f"--state={state}", handle["job_id"]))
        reach.ask(("scancel", *(() if kill else ("--batch", "--signal=TERM")), handle["job_id"]))

    def _watcher(self, reach: Reach) -> QueueWatcher:
        return self._watchers.setdefault(reach, QueueWatcher(reach, self.interval))


class Sbatch(threading.Thread):
    """One submission, in a thread of its own: a controller that does not answer keeps sbatch waiting."""

    def __init__(self, submit: Callable[[], Handle], where: str) -> None:
        super().__init__(daemon=True, name="sbatch")
        self._submit = submit
        self._where = where
        self._handle: Handle | None = None
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Submit."""
        try:
            self._handle = self._submit()
        except Exception as error:
            self._error = error

    @property
    def refused(self) -> bool:
        """Whether it is certain that nothing was submitted."""
        return self._error is not None and not isinstance(self._error, Unanswered)

    def result(self, patience: float) -> Handle:
        """The job's handle; raises what the submission has raised, and Unanswered if it goes on for longer than ``patience``."""
        self.join(patience)
        if self._error is not None:
            raise self._error
        if self._handle is None:
            raise Unanswered("sbatch has not come to an end yet", self._where)
        return self._handle


class Lookup:
    """The search for what an interrupted submission may have left in SLURM."""

    def __init__(self, wanted: Submission, attempt: int, settle: float) -> None:
        self._wanted = wanted
        self._unknown = f"whether SLURM has taken attempt {attempt} is not known"
        self._waiting = f"the submission of attempt {attempt} was interrupted; waiting to see whether SLURM has taken it"
        self._settle = settle
        self._missed: float | None = None
        """When the first cycle began that did not find it."""
        self._searching: set[QueueWatcher] = set()
        """Those that look through accounting for it."""

    def end(self) -> None:
        """Have nobody search any longer."""
        for queue in self._searching:
            queue.found(self._wanted.name)

    def verdict(self, watcher: Callable[[Reach], QueueWatcher], now: float) -> Submission | None:
        """The submission with the job that it led to; None if it certainly led to none.

        Args:
            watcher: who watches a cluster.
            now: seconds of a clock that never goes back.

        Raises:
            Unreachable: if that is not known yet.
        """
        wanted, begun, looked_through = self._wanted, now, True
        late = self._missed is not None and now - self._missed >= self._settle / 2
        for cluster in self._clusters(watcher):
            queue = watcher(wanted.reach(cluster))
            if late:
                queue.look_for(wanted.name)  # it may have run, ended, and left the queue
                self._searching.add(queue)
            snapshot = queue.snapshot(PATIENCE)
            if snapshot.fault is not None:
                raise Unreachable(f"{self._unknown}: {snapshot.fault}", wanted.reach(wanted.clusters).name)
            row = next((row for row in (*snapshot.rows.values(), *snapshot.named.values()) if wanted.is_in(row)), None)
            if row is not None:
                return wanted.known(row.job_id, cluster)
            begun = min(begun, snapshot.begun)
            looked_through = looked_through and wanted.name in snapshot.looked_for
        self._missed = begun if self._missed is None else self._missed
        if begun - self._missed < self._settle or not looked_through:
            raise Unreachable(self._waiting, wanted.token)
        return None

    def _clusters(self, watcher: Callable[[Reach], QueueWatcher]) -> Sequence[str | None]:
        """The clusters that may have taken it."""
        clusters = self._wanted.clusters
        if clusters is None or clusters.lower() != "all":
            return clusters.split(",") if clusters else (None,)
        queue = watcher(self._wanted.reach(None))
        queue.want_clusters()
        snapshot = queue.snapshot(PATIENCE)
        if not snapshot.clusters:
            why = f": {snapshot.fault}" if snapshot.fault else ""
            raise Unreachable(f"{self._unknown}, as its clusters are not{why}", self._wanted.token)
        return snapshot.clusters


def _at_newest(seen: Seen, handle: Handle) -> Seen:
    """What was seen, with the newest attempt that the batch script has begun, if SLURM has put the job back."""
    if not isinstance(seen, (Alive, Gone)):
        return seen
    job, first = JobPaths(Path(handle["dir"])), handle["attempt"]
    begun = [number for number in job.attempt_numbers() if number > first and job.attempt(number).claim.exists()]
    return replace(seen, attempt=begun[-1]) if begun else seen


def _reach(handle: Handle) -> Reach:
    return Reach(handle.get("conf"), handle.get("programs"), handle.get("cluster"))


def _key(handle: Handle) -> Key:
    return handle.get("cluster"), handle["job_id"]


def _end_written(handle: Handle) -> bool:
    """Whether the newest attempt of a job has noted how it ended."""
    job = JobPaths(Path(handle["dir"]))
    return job.attempt(max([handle["attempt"], *job.attempt_numbers()])).end.exists()


def _gone(handle: Handle, row: Row, killed_by: str | None) -> Gone:
    """What SLURM says of a job that is over; a supervisor that was killed has left no word of its own."""
    cause = cause_of(row.state)
    newest = JobPaths(Path(handle["dir"])).newest_attempt()
    if killed_by is not None and newest.claim.exists():
        return Gone(cause, f"what ran attempt {newest.number}, in job {row.job_id} of SLURM, was killed by {killed_by}")
    who = row.state_name.partition(" by ")[2]
    where = f" by user {who}" if who else f" on {row.nodes}" if row.nodes and cause == LOST_NODE else ""
    return Gone(cause, f"job {row.job_id} {row.state.words}{where}")


def _stamp(job: JobPaths) -> int:
    """The last sign of life of a job's supervisors and ranks."""
    newest = job.newest_attempt()
    times = [0]
    for path in (newest.alive, newest.claim, newest.ranks):
        try:
            times.append(path.stat().st_mtime_ns)
        except OSError:
            continue
    return max(times)

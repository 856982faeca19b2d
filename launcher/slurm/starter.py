"""Supervisors inside jobs of SLURM, submitted by sbatch.

The batch script runs one attempt after the other for as long as SLURM puts the job back into its queue (`launcher.slurm.batch`),
so one handle may stand for several attempts, of which the newest counts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.attempt.starter import Alive, Gone, Handle, Seen, Unknown, Unreachable
from launcher.host.clock import Unchanged
from launcher.jobdir import variables
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import FAILURE, LOST_NODE
from launcher.slurm import submission
from launcher.slurm.answers import NoAnswer, Row, parse_sacct
from launcher.slurm.commands import Reach
from launcher.slurm.job_info import killed_by, parse_job
from launcher.slurm.queue import Queue, Snapshot
from launcher.slurm.script import asked_of, token
from launcher.slurm.submission import Submission

if TYPE_CHECKING:
    from launcher.jobdir.plan import Plan

INTERVAL = 10.0
"""Seconds between two questions to the scheduler."""
PATIENCE = 1.0
"""Seconds to wait for an answer that is on its way."""
START_PATIENCE = 2.0
"""The same before a submission, as it is put off for longer otherwise."""
ASK_SECONDS = 3.0
"""Seconds that SLURM has to say by which signal a job ended."""
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
        self._queues: dict[Reach, Queue] = {}
        """One a cluster."""
        self._submitted: dict[Key, float] = {}
        """When jobs were submitted by this process: an answer to an earlier question does not hold them."""
        self._silent: dict[str, tuple[float, str]] = {}
        """Until when clusters that did not answer sbatch are spared, and what it said, by their reach."""
        self._missed: dict[str, float] = {}
        """Since when interrupted submissions are not found, by token."""
        self._lives = Unchanged()
        """Signs of life of supervisors that SLURM does not know."""

    def start(self, job: JobPaths, attempt: int, plan: Plan, environment: Mapping[str, str]) -> Handle:
        """Submit the attempt, unless it is in the queue already."""
        found = self.find(job, attempt)
        if found is not None:
            return found
        reach = Reach.of(environment, asked_of(plan).clusters)
        where = reach.name
        self._check_answers(reach)
        self._missed.pop(token(plan, attempt), None)  # only now: whoever has found nothing asks again before they start
        try:
            handle = submission.submit(job, attempt, plan, environment)
        except Unreachable as error:
            self._silent[where] = self._clock() + SILENT, str(error).partition(": ")[2]
            raise Unreachable(str(error), where) from error
        self._submitted[_key(handle)] = self._clock()
        return handle

    def _check_answers(self, reach: Reach) -> None:
        """Raise Unreachable where sbatch would only keep everybody waiting."""
        until, said = self._silent.get(reach.name, (float("-inf"), ""))
        if self._clock() < until:
            raise Unreachable(f"it was not submitted yet: another job a moment ago met with: {said}", reach.name)
        queue = self._queues.get(reach)
        if queue is None or not queue.asked or queue.snapshot(0.0).fault is None:
            return
        if (fault := queue.snapshot(START_PATIENCE).fault) is not None:
            raise Unreachable(f"it was not submitted yet: {fault}", reach.name)

    def find(self, job: JobPaths, attempt: int) -> Handle | None:
        """What is on record, else what the queue and accounting hold under the attempt's token."""
        paths = job.attempt(attempt)
        known = submission.known_handle(paths)
        if known is not None:
            return known
        wanted = Submission.read(paths)
        return self._search(job, attempt, wanted) if wanted is not None else None

    def _search(self, job: JobPaths, attempt: int, wanted: Submission) -> Handle | None:
        begun = self._clock()
        for cluster in self._clusters(wanted, attempt):
            queue = self._queue(wanted.reach(cluster))
            snapshot = queue.snapshot(PATIENCE)
            if snapshot.fault is not None:
                text = f"whether SLURM has taken attempt {attempt} is not known: {snapshot.fault}"
                raise Unreachable(text, wanted.reach(wanted.clusters).name)
            begun = min(begun, snapshot.begun)
            row = next((row for row in snapshot.rows.values() if wanted.is_in(row)), None) or self._accounted(queue, wanted)
            if row is not None:
                found = wanted.known(row.job_id, cluster)
                found.write(job.attempt(attempt))
                return found.handle(job.attempt(attempt))
        since = self._missed.setdefault(wanted.token, begun)
        if begun - since < self._settle:
            text = f"the submission of attempt {attempt} was interrupted; waiting to see whether SLURM has taken it"
            raise Unreachable(text, wanted.token)
        return None

    def _clusters(self, wanted: Submission, attempt: int) -> Sequence[str | None]:
        """The clusters that may have taken a submission."""
        if wanted.clusters is None or wanted.clusters.lower() != "all":
            return wanted.clusters.split(",") if wanted.clusters else (None,)
        answer = wanted.reach(None).ask(("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster"))
        if not answer.ok or not answer.stdout.split():
            text = f"whether SLURM has taken attempt {attempt} is not known: its clusters are not: {answer.complaint}"
            raise Unreachable(text, wanted.token)
        return answer.stdout.split()

    def _accounted(self, queue: Queue, wanted: Submission) -> Row | None:
        """The job, where it has ended and left the queue; only asked for once the settling time is nearly over."""
        since = self._missed.get(wanted.token)
        if since is None or self._clock() - since < self._settle / 2 or not queue.accounting():
            return None
        try:
            rows = parse_sacct(queue.ask_accounting_by_name(wanted.name))
        except NoAnswer as error:
            raise Unreachable(f"whether SLURM has taken the job is not known: {error}", wanted.token) from error
        return next((row for row in rows.values() if wanted.is_in(row)), None)

    def look(self, handles: Mapping[str, Handle]) -> Mapping[str, Seen]:
        """What the queue says of all jobs, in one question per cluster and interval."""
        seen: dict[str, Seen] = {}
        groups: dict[Queue, dict[str, Handle]] = {}
        for job_id, handle in handles.items():
            groups.setdefault(self._queue(_reach(handle)), {})[job_id] = handle
        for queue, members in groups.items():
            snapshot = queue.snapshot(PATIENCE)
            seen.update({job_id: _at_newest(self._judge(handle, snapshot), handle) for job_id, handle in members.items()})
            queue.wonder(frozenset(handle["job_id"] for handle in members.values() if self._wonders(handle, snapshot)))
        return seen

    @staticmethod
    def _wonders(handle: Handle, snapshot: Snapshot) -> bool:
        absent = snapshot.fault is None and handle["job_id"] not in snapshot.rows
        return absent and not submission.end_written(handle["dir"], handle["attempt"])

    def _judge(self, handle: Handle, snapshot: Snapshot) -> Seen:
        if snapshot.fault is not None:
            return Unknown(snapshot.fault)
        number = handle["job_id"]
        row = snapshot.rows.get(number) or snapshot.ended.get(number)
        if row is not None and row.state.phase == "over":
            return Gone(row.state.cause, _killed(handle, row) or f"job {number} {row.state.words}{_on(row)}")
        if row is not None and number in snapshot.rows:
            return Alive(f"job {number} {row.detail}", running=row.state.phase in ("running", "ending"), note=row.note)
        if snapshot.begun <= self._submitted.get(_key(handle), float("-inf")):
            return Alive(f"job {number} was submitted", running=False)
        return self._forgotten(handle)

    def _forgotten(self, handle: Handle) -> Seen:
        """SLURM does not know the job: it has ended long ago, or the controller lost its memory while the ranks go on."""
        number = handle["job_id"]
        if submission.end_written(handle["dir"], handle["attempt"]):
            return Gone()
        stamp = _stamp(JobPaths(Path(handle["dir"])))
        if self._lives.seconds(_key(handle), stamp, self._clock()) < self._quiet:
            return Unknown(f"SLURM does not know job {number} any more; waiting to see whether it still shows life")
        return Gone(None, f"SLURM does not know job {number} any more, and it shows no life")

    def stop(self, handle: Handle, kill: bool) -> None:
        """Cancel the job where it waits or is suspended; tell its supervisor to stop where it runs; cancel any if ``kill``."""
        threading.Thread(target=self._cancel, args=(handle, kill), daemon=True, name="scancel").start()

    def _cancel(self, handle: Handle, kill: bool) -> None:
        reach = _reach(handle)
        if not kill:
            for state in ("PENDING", "SUSPENDED"):  # no signal reaches what is suspended
                reach.ask(("scancel", f"--state={state}", handle["job_id"]))
        reach.ask(("scancel", *(() if kill else ("--batch", "--signal=TERM")), handle["job_id"]))

    def _queue(self, reach: Reach) -> Queue:
        return self._queues.setdefault(reach, Queue(reach, self.interval))


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


def _killed(handle: Handle, row: Row) -> str | None:
    """What SLURM can say of an attempt whose supervisor was killed and so left no word; None where that is not what happened."""
    job = JobPaths(Path(handle["dir"]))
    if row.state.cause != FAILURE or submission.end_written(handle["dir"], handle["attempt"]):
        return None
    newest = job.newest_attempt()
    if not newest.claim.exists():
        return None
    answer = _reach(handle).ask(("scontrol", "--oneliner", "show", "job", row.job_id), timeout=ASK_SECONDS)
    name = killed_by(parse_job(answer))
    return f"what ran attempt {newest.number}, in job {row.job_id} of SLURM, was killed by {name}" if name else None


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


def _on(row: Row) -> str:
    who = row.state_name.partition(" by ")[2]
    return f" by user {who}" if who else f" on {row.nodes}" if row.nodes and row.state.cause == LOST_NODE else ""

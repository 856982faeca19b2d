"""What a batch script runs: ``python -m launcher.slurm.batch JOBDIR ATTEMPT``.

One start of the job in SLURM is one attempt: the one that the script was written for, plus one for every time that SLURM has
put the job back into its queue.  After an attempt the same restart policy that the daemon follows decides here whether there is
another one, and the job then puts itself back, so that no daemon need live.  Exactly one decides: with ``slurm.requeue: true``
the job itself as long as SLURM holds it, and the daemon only once SLURM has let it go; with ``false`` always the daemon.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from launcher.attempt.policy import Restart, Verdict, decide
from launcher.attempt.report import report_unseen
from launcher.attempt.supervisor import AlreadyClaimedError, SilentView
from launcher.errors import EXIT_FAILED, EXIT_USAGE, LauncherError
from launcher.host.program import Answer
from launcher.host.signals import STOPPING, SignalBox
from launcher.jobdir import words
from launcher.jobdir.claim import EXIT_CLAIMED, Claim
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog, read_events
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import FAILED
from launcher.plan.facts import Allocation
from launcher.plan.planning import next_attempt
from launcher.slurm.causes import read_log, why
from launcher.slurm.check import said_in_trial
from launcher.slurm.commands import call
from launcher.slurm.script import LOG, asked_of, script
from launcher.slurm.surroundings import SlurmRun

ASK_SECONDS = 5.0
"""Seconds that SLURM has to say why it ends the job; KillWait, 30 seconds by default, runs meanwhile."""
SIMULTANEOUS = 3.0
"""Seconds within which ends of ranks, and SLURM's signal to this process, belong together."""
REQUEUE_TRIES = 6
REQUEUE_PAUSE = 10.0
_REFUSALS = ("disabled", "denied", "invalid", "not permitted", "completing or completed")


class Scheduler:
    """This job's own SLURM, asked from inside."""

    def __init__(self, allocation: Allocation, log: Path) -> None:
        self.allocation = allocation
        self._log = log
        self._begin = log.stat().st_size if log.exists() else 0

    def why(self) -> Stop | None:
        """Why SLURM ends the job; None if it does not, or does not say."""
        number = self.allocation.job_id
        ask = partial(call, ("scontrol", "--oneliner", "show", "job", number), timeout=ASK_SECONDS)
        return why(number, read_log(self._log, self._begin), ask, self.allocation.restarts)

    def possible(self, text: str) -> bool:
        """Whether SLURM would take a batch script; true if it does not say."""
        answer = call(("sbatch", "--test-only"), stdin=text, timeout=ASK_SECONDS)
        return answer.ok or said_in_trial(answer) is None

    def requeue(self, at: float, excluded: Sequence[str]) -> str | None:
        """Put the job back into the queue; returns why that was not possible, or None.

        Args:
            at: Unix time before which it is not to start.
            excluded: nodes to do without.
        """
        number = self.allocation.job_id
        answer = Answer(None, "", "")
        for last in range(REQUEUE_TRIES):
            answer = call(("scontrol", "requeue", number))
            if answer.ok or _refused(answer):
                break
            time.sleep(REQUEUE_PAUSE if last < REQUEUE_TRIES - 1 else 0.0)
        if not answer.ok:
            return answer.complaint
        wait = at - time.time()
        changes = [f"StartTime=now+{round(wait)}seconds"] if wait > 1 else []
        changes += [f"ExcNodeList={','.join(excluded)}"] if excluded else []
        if changes:  # only a waiting job can be changed; its StartTime must also outlast the time that SLURM adds
            call(("scontrol", "update", f"JobId={number}", *changes))
        return None


def _refused(answer: Answer) -> bool:
    return any(word in answer.stderr.lower() for word in _REFUSALS)


class AskingBox(SignalBox):
    """Notes why SLURM ends the job, before a signal of SLURM becomes a request to stop."""

    def __init__(self, job: JobPaths, attempt: int, scheduler: Scheduler) -> None:
        super().__init__()
        self._job = job
        self._attempt = job.attempt(attempt)
        self._scheduler = scheduler
        self._asked = False

    def take(self) -> list[int]:
        """Signals since the last call; the first that asks to stop is explained in ``stop.json``."""
        numbers = super().take()
        if not self._asked and any(number in STOPPING for number in numbers):
            self._asked = True
            self._explain()
        return numbers

    def _explain(self) -> None:
        if self._job.cancel.exists() or Stop.read(self._attempt) is not None:
            return
        request = self._scheduler.why()
        if request is not None and self._attempt.root.is_dir():
            # SLURM has signalled the programs as well: their ends, a moment ago, are a consequence and no cause
            replace(request, time=round(time.time() - SIMULTANEOUS, 3)).write(self._attempt)


class BatchRun(SlurmRun):
    """An attempt inside a job of SLURM, which can say what only SLURM knows."""

    scheduler: Scheduler

    def _from_outside(self, marks: list[RankMark | None], unknown: list[str]) -> Stop | None:
        """SLURM may have told the ranks alone to end (preemption with a grace time), or lost a node under them."""
        if all(mark is None or mark.exit_code == 0 for mark in marks):
            return super()._from_outside(marks, unknown)
        told = any(mark is not None and (mark.stopped or mark.exit_code is None or mark.signal is not None) for mark in marks)
        request = self.scheduler.why() if told else None
        if request is not None:
            return replace(request, time=0.0)
        return super()._from_outside(marks, unknown)


def run(job: JobPaths, base: int, scheduler: Scheduler) -> int:
    """Run this start's attempt, and put the job back if another one is due; returns the exit code."""
    number = base + scheduler.allocation.restarts
    ends = note_lost(job, first_attempt(job, base), number)
    plan = place_plan(job, number, ends)
    with AskingBox(job, number, scheduler) as signals:
        attempt = BatchRun(job, plan, SilentView(), signals)
        attempt.scheduler, attempt.allocation = scheduler, scheduler.allocation
        end = attempt.run()
    verdict = decide(plan.restart, [*ends, end], time.time())
    if not isinstance(verdict, Restart):
        report_unseen(plan, job)
        return end.exit_code
    _ignore_signals()  # putting the job back ends this process too, and there is something left to do then
    unexplained = attempt.unexplained and scheduler.why() is None
    if requeue_decision(plan, end, verdict, cancelled=job.cancel.exists(), unexplained=unexplained) and put_back(
        job, plan, verdict, scheduler
    ):
        time.sleep(30.0)  # SLURM ends this process now; an end of its own could be taken for the job's
    return end.exit_code


def requeue_decision(plan: Plan, end: AttemptEnd, verdict: Verdict, *, cancelled: bool, unexplained: bool) -> bool:
    """Whether the job puts itself back into the queue.

    Args:
        plan: of the attempt that has ended.
        end: how it ended.
        verdict: of the restart policy.
        cancelled: whether the job was cancelled.
        unexplained: whether a signal ended the attempt, and SLURM does not say why it was sent: perhaps a person sent it who does
            not want the job back.
    """
    if not isinstance(verdict, Restart) or cancelled or not asked_of(plan).requeue:
        return False
    return not (end.cause == words.PREEMPTION and unexplained)


def put_back(job: JobPaths, plan: Plan, verdict: Restart, scheduler: Scheduler) -> bool:
    """Put the job back into the queue; returns whether that was possible."""
    events, number = EventLog(job), plan.job.attempt
    without = _without(plan, number, verdict.excluded_hosts, scheduler)
    events.add("requeued", attempt=number, reason=verdict.reason, without=list(without))
    fault = scheduler.requeue(verdict.at, without)
    if fault is not None:
        events.add("requeue-failed", attempt=number, reason=fault)
        print(f"hvdgrab-launch: the job could not be put back into the queue: {fault}", file=sys.stderr)
    return fault is None


def _without(plan: Plan, number: int, excluded: Sequence[str], scheduler: Scheduler) -> Sequence[str]:
    """The nodes to do without; none if too few would be left, as the job would then wait for ever."""
    if not excluded:
        return ()
    return excluded if scheduler.possible(script(plan.without_hosts(excluded), number)) else ()


def _ignore_signals() -> None:
    for name in STOPPING:
        signal.signal(name, signal.SIG_IGN)


def first_attempt(job: JobPaths, base: int) -> int:
    """The first attempt since a person last gave the job: budgets count from it, whoever has submitted ``base``."""
    first = base
    for event in reversed(read_events(job.events)):
        if event["event"] == "retried":
            break
        if event["event"] == "starting" and isinstance(event.get("attempt"), int):
            first = min(first, max(1, event["attempt"]))
    return first


def note_lost(job: JobPaths, base: int, number: int) -> list[AttemptEnd]:
    """The ends of the attempts from ``base`` up to this one.  Writes one for each that was cut off without a word."""
    ends = []
    for earlier in range(base, number):
        attempt = job.attempt(earlier)
        end = AttemptEnd.read(attempt)
        if end is None and (claim := Claim.read(attempt)) is not None:
            request = Stop.read(attempt)
            now = round(time.time(), 3)
            end = AttemptEnd(
                earlier, FAILED, request.cause if request else words.LOST_NODE, EXIT_FAILED,
                request.reason if request else f"SLURM put the job back; the attempt's supervisor on {claim.host} left no word",
                started=claim.time, ended=now, seconds=max(0.0, round(now - claim.time, 3)), progressed=attempt.progress.exists(),
            )  # fmt: skip
            end.write(attempt)
        if end is not None:
            ends.append(end)
    return ends


def place_plan(job: JobPaths, number: int, ends: Sequence[AttemptEnd]) -> Plan:
    """The plan of this attempt: the one that was written with the script, or one that follows from it.

    Raises:
        PlanFileError: if there is none that can be read.
        OSError: if the following one cannot be written.
    """
    attempt = job.attempt(number)
    plan = Plan.of(attempt)
    if plan.job.attempt == number and attempt.plan.exists():
        return plan
    verdict = decide(plan.restart, ends, time.time()) if ends else None
    following = next_attempt(plan, number, verdict.excluded_hosts if isinstance(verdict, Restart) else ())
    following.place(job)
    return following


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Entry point: the job directory and the attempt for which the script was written."""
    if len(argv) != 2 or not argv[1].isdigit() or int(argv[1]) < 1:
        print("usage: python -m launcher.slurm.batch JOBDIR ATTEMPT", file=sys.stderr)
        return EXIT_USAGE
    allocation = Allocation.from_environment(environment)
    if allocation is None:
        print("hvdgrab-launch: this script belongs into SLURM: submit it with sbatch", file=sys.stderr)
        return EXIT_USAGE
    job = JobPaths(Path(argv[0]).absolute())
    try:
        return run(job, int(argv[1]), Scheduler(allocation, job.root / LOG))
    except AlreadyClaimedError as error:
        print(f"hvdgrab-launch: {error}", file=sys.stderr)
        return EXIT_CLAIMED
    except (OSError, ValueError, TypeError, KeyError, LauncherError) as error:
        print(f"hvdgrab-launch: {job.id} was not started: {error}", file=sys.stderr)
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

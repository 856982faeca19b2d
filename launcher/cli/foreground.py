"""`run --foreground`: jobs run here, without a daemon: attempts one after the other, as the restart settings say.

The attempts are those that a daemon starts, in the same directory by the same plan.  The first Ctrl-C (or TERM, or HUP) stops
the job, a second one stops waiting for it.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TextIO

from launcher.attempt import policy
from launcher.attempt.report import make_report
from launcher.attempt.supervisor import View
from launcher.cli.directory import view_of
from launcher.cli.follow import build_view
from launcher.cli.planned import prepared_jobs
from launcher.cli.showing import end_data, end_of_job
from launcher.daemon.http.messages import JobView
from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, PlanError, UsageError
from launcher.host.processes import own_identity, process_table
from launcher.host.signals import SignalBox
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.plan import Plan
from launcher.jobdir.words import CANCELLED, FAILED
from launcher.plan.planning import next_attempt
from launcher.plan.prepare import Prepared, write_directory
from launcher.slurm.surroundings import build_run


def run_here(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Run a job, or variants one after another, in the foreground; returns the exit code of the first that failed."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    needed = jobs[0].plan.job.depends_on
    if needed:
        raise UsageError(f"depends_on: it is the daemon that waits for {', '.join(needed)}; leave out --foreground")
    ended: list[JobView] = []
    for job in jobs:
        ended.append(_run(job, sys.stderr if as_json else sys.stdout))
        if ended[-1].state == CANCELLED:
            break
    if as_json:
        documents = [end_data(view) for view in ended]
        print(json.dumps(documents if len(jobs) > 1 else documents[0]))
    return next((view.exit_code for view in ended if view.exit_code), EXIT_OK)


def _run(prepared: Prepared, stream: TextIO) -> JobView:
    display = build_view(stream, prepared.job)
    try:
        run = ForegroundRun(prepared, display)
        view = run.run()
    finally:
        display.closed()
    problem = make_report(run.plan, prepared.job)
    print("\n".join(end_of_job(view)), file=stream)
    if problem is not None:
        print(f"warning: {problem}", file=sys.stderr)
    return view


class ForegroundRun:
    """One job; `run` is called once.

    Attributes:
        plan: that of the newest attempt, as it lies on the disk.
    """

    def __init__(self, prepared: Prepared, view: View) -> None:
        self.plan = prepared.plan
        self._prepared = prepared
        self._job = prepared.job
        self._view = view
        self._ends: list[AttemptEnd] = []

    def run(self) -> JobView:
        """Write the job directory, and run attempts until the job has ended; returns the job as it is then.

        Raises:
            UsageError: the job directory cannot be made.
        """
        begun = time.monotonic()
        with SignalBox() as signals:
            write_directory(self._prepared)
            self.plan = Plan.read(self._job.plan)
            events = self._note_submission()
            final = self._attempts(signals, events)
            seconds = round(time.monotonic() - begun, 3)
            remaining = list(self._ends[-1].remaining) if self._ends else []
            events.add("finished", **vars(final), seconds=seconds, remaining=remaining)
        return replace(  # a full disk may have kept the events from the directory
            view_of(self._job), **vars(final), seconds=seconds, ranks=self.plan.placement.ranks, backend=self.plan.launch.backend
        )

    def _note_submission(self) -> EventLog:
        events, job = EventLog(self._job), self.plan.job
        what = {"ranks": self.plan.placement.ranks, "backend": self.plan.launch.backend}
        events.add("submitted", id=job.id, name=job.name, **what, **own_identity(), processes=process_table())
        return events

    def _attempts(self, signals: SignalBox, events: EventLog) -> policy.Final:
        while True:
            try:
                self.plan.place(self._job)
                end = build_run(self._job, self.plan, self._view, signals, interactive=True).run()
            except OSError as error:
                reason = f"the job directory {self._job.root} cannot be used: {error.strerror}"
                return policy.Final(FAILED, EXIT_FAILED, reason)
            self._ends.append(end)
            verdict = policy.decide(self.plan.restart, self._ends, time.time())
            if isinstance(verdict, policy.Final):
                return verdict
            events.add("restarting", reason=verdict.reason, at=round(verdict.at, 3), excluded=list(verdict.excluded_hosts))
            pause = max(0.0, verdict.at - time.time())
            self._view.warn(f"{verdict.reason} in {pause:.0f} s")
            if interrupted_within(pause, signals):
                return policy.Final(CANCELLED, EXIT_INTERRUPTED, "interrupted between two attempts")
            try:
                self.plan = next_attempt(self.plan, self.plan.job.attempt + 1, verdict.excluded_hosts)
            except PlanError as error:
                return policy.Final(FAILED, end.exit_code, f"{end.reason}; no other attempt can be planned: {error}")


def interrupted_within(seconds: float, signals: SignalBox) -> bool:
    """Wait for some seconds, whatever is done to the clock meanwhile; returns True at once if a signal arrives."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        select.select([signals], [], [], min(left, 60.0))
        if signals.take():
            return True
    return False

"""The process that runs one attempt of a job: ``python -m launcher.supervise JOBDIR ATTEMPT``.

A daemon starts it, or a person.  Exit codes: the attempt's own; 75 if the attempt has, or had, a supervisor already, and nothing
was started; 2 if there is no such job.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.attempt.report import is_over, report_unseen
from launcher.attempt.supervisor import AlreadyClaimedError, SilentView
from launcher.errors import EXIT_FAILED, EXIT_USAGE, LauncherError
from launcher.host.signals import SignalBox
from launcher.host.text import why
from launcher.jobdir.claim import EXIT_CLAIMED
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan, PlanFileError
from launcher.plan.planning import next_attempt
from launcher.slurm.surroundings import build_run


def read_plan(job: JobPaths, attempt: int) -> Plan:
    """The attempt's own plan, or the job's, made one of this attempt.

    Raises:
        PlanFileError: if there is none that can be read.
    """
    plan = Plan.of(job.attempt(attempt))
    return plan if plan.job.attempt == attempt else next_attempt(plan, attempt, plan.placement.excluded_hosts)


def supervise(job: JobPaths, attempt: int) -> int:
    """Run an attempt that nobody looks at; returns the exit code."""
    with SignalBox() as signals:
        try:
            plan = read_plan(job, attempt)
        except PlanFileError as error:
            print(f"{job.root} holds no job that can be started: {error}", file=sys.stderr)
            return EXIT_USAGE
        try:
            end = build_run(job, plan, SilentView(), signals).run()
        except AlreadyClaimedError as error:
            print(error, file=sys.stderr)
            return EXIT_CLAIMED
        except (OSError, LauncherError) as error:
            print(f"{job.id}: attempt {attempt} was not started: {why(error)}", file=sys.stderr)
            return EXIT_FAILED
        if is_over(plan, job):
            report_unseen(plan, job)  # the job's slots stay taken meanwhile: whoever waits for its end finds the report
        return end.exit_code


def main(argv: Sequence[str]) -> int:
    """Entry point: the job directory and the attempt's number."""
    if len(argv) != 2 or not argv[1].isdigit() or int(argv[1]) < 1:
        print("usage: python -m launcher.supervise JOBDIR ATTEMPT", file=sys.stderr)
        return EXIT_USAGE
    return supervise(JobPaths(Path(argv[0]).absolute()), int(argv[1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

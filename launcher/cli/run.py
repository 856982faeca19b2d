"""The commands that take a job's YAML and need no daemon: validate, schema, dry-run, foreground."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from launcher.cli import render
from launcher.cli.guard import warn_of
from launcher.errors import EXIT_OK, UsageError
from launcher.jobdir.words import CANCELLED
from launcher.plan.prepare import Prepared, prepare

if TYPE_CHECKING:
    from launcher.cli.foreground import Finished
    from launcher.jobdir.plan import Plan
    from launcher.spec.model import Spec


def prepared_jobs(file: str, overrides: Sequence[str], jobs_dir: str | None) -> list[Prepared]:
    """The jobs of a file, checked on this host and by SLURM; prints warnings on stderr.

    Raises:
        UsageError, SpecError, PlanError: naming what is wrong.
    """
    jobs = prepare(file, overrides, jobs_dir, query_site=_query_site)
    warn_of(jobs[0].warnings)
    return jobs


def _query_site(jobs: Sequence[tuple[Spec, Plan]]) -> Sequence[str]:
    from launcher.slurm import examine

    return examine.check(jobs, os.environ)


def dry_run(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Print the plan, or the plan of every variant; returns the exit code."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    if as_json:
        plans = [{**asdict(job.plan), "spec": job.spec.frozen_copy()} for job in jobs]
        print(json.dumps(plans if len(plans) != 1 else plans[0], indent=2))
    else:
        print("\n\n".join(render.plan_text(job.plan, job.spec.frozen_text()) for job in jobs))
    return EXIT_OK


def validate(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Check everything that can be checked before a start; returns the exit code."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    plan = jobs[0].plan
    if as_json:
        found = {"name": plan.job.name, "ranks": plan.placement.ranks, "backend": plan.launch.backend, "jobs": len(jobs)}
        print(json.dumps({"valid": True, **found}))
        return EXIT_OK
    several = f"{len(jobs)} variants, each with " if len(jobs) > 1 else ""
    print(f"{file}: valid; {several}{render.placement_text(plan)}")
    return EXIT_OK


def schema() -> int:
    """Print the JSON schema of a job's YAML; returns the exit code."""
    from launcher.spec.schema import text

    print(text(), end="")
    return EXIT_OK


def foreground(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Run a job, or variants one after another, in the foreground; returns the exit code of the first that failed."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    needed = jobs[0].plan.job.depends_on
    if needed:
        raise UsageError(f"depends_on: it is the daemon that waits for {', '.join(needed)}; leave out --foreground")
    finished = []
    for job in jobs:
        finished.append(_run(job, as_json=as_json))
        if finished[-1].outcome.state == CANCELLED:
            break
    if as_json:
        documents = [render.result_json(one) for one in finished]
        print(json.dumps(documents if len(jobs) > 1 else documents[0]))
    return next((one.outcome.exit_code for one in finished if one.outcome.exit_code != EXIT_OK), EXIT_OK)


def _run(prepared: Prepared, *, as_json: bool) -> Finished:
    from launcher.attempt.report import make_report
    from launcher.cli.foreground import ForegroundRun
    from launcher.cli.views import build_view

    stream = sys.stderr if as_json else sys.stdout
    view = build_view(stream, prepared.job)
    try:
        finished = ForegroundRun(prepared, view).run()
    finally:
        view.closed()
    problem = make_report(finished.plan, finished.job)
    print(render.result_text(finished), file=stream)
    if problem is not None:
        print(f"warning: {problem}", file=sys.stderr)
    return finished

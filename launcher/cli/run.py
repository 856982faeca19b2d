"""The commands that take a job's YAML: run, dry-run, validate."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from launcher.cli import render
from launcher.submit import frozen_text, prepare


def dry_run(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Print the plan; returns the exit code."""
    prepared = prepare(file, overrides, jobs_dir)
    if as_json:
        print(json.dumps({**asdict(prepared.plan), "spec": prepared.spec.frozen_copy()}, indent=2))
    else:
        print(render.plan_text(prepared.plan, frozen_text(prepared.spec)))
    return 0


def validate(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Check everything that can be checked before a start; returns the exit code."""
    prepared = prepare(file, overrides, jobs_dir)
    plan = prepared.plan
    if as_json:
        print(json.dumps({"valid": True, "name": plan.name, "ranks": plan.ranks, "backend": plan.backend}))
    else:
        print(f"{file}: valid; {render.placement_text(plan)}")
    return 0


def run(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Run a job in the foreground; returns its exit code."""
    from launcher.cli.views import build_view
    from launcher.foreground import ForegroundRun, make_report

    prepared = prepare(file, overrides, jobs_dir)
    stream = sys.stderr if as_json else sys.stdout
    view = build_view(stream, prepared.job)
    try:
        finished = ForegroundRun(prepared, view).run()
    finally:
        view.closed()
    problem = make_report(finished.plan, finished.job)
    if as_json:
        print(json.dumps(render.result_json(finished)))
    print(render.result_text(finished), file=stream)
    if problem is not None:
        print(f"warning: {problem}", file=sys.stderr)
    return finished.outcome.exit_code

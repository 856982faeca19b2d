"""From a job's YAML to jobs that could start, and the commands that start nothing: `validate`, `schema`, `run --dry-run`."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict

from launcher.cli.texts import placement_text, printable, warn_of
from launcher.errors import EXIT_OK
from launcher.jobdir.plan import Plan
from launcher.plan.prepare import Prepared, prepare
from launcher.spec.model import Spec

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 256))} | {39: "\\'", 92: "\\\\", 10: "\\n", 9: "\\t"}


def prepared_jobs(file: str, overrides: Sequence[str], jobs_dir: str | None) -> list[Prepared]:
    """The jobs of a file, checked on this host and by SLURM; prints warnings on stderr.

    Raises:
        UsageError, SpecError, PlanError: naming what is wrong.
    """
    jobs = prepare(file, overrides, jobs_dir, query_site=_query_site)
    warn_of(jobs[0].warnings)
    return jobs


def _query_site(jobs: Sequence[tuple[Spec, Plan]]) -> Sequence[str]:
    from launcher.slurm.check import check

    return check(jobs, os.environ)


def validate(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Check everything that can be checked before a start; returns the exit code."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    plan = jobs[0].plan
    if as_json:
        found = {"name": plan.job.name, "ranks": plan.placement.ranks, "backend": plan.launch.backend, "jobs": len(jobs)}
        print(json.dumps({"valid": True, **found}))
        return EXIT_OK
    several = f"{len(jobs)} variants, each with " if len(jobs) > 1 else ""
    print(f"{file}: valid; {several}{placement_text(plan)}")
    return EXIT_OK


def schema() -> int:
    """Print the JSON schema of a job's YAML; returns the exit code."""
    from launcher.spec.schema import text

    print(text(), end="")
    return EXIT_OK


def dry_run(file: str, overrides: Sequence[str], jobs_dir: str | None, *, as_json: bool) -> int:
    """Print the plan, or the plan of every variant; returns the exit code."""
    jobs = prepared_jobs(file, overrides, jobs_dir)
    if as_json:
        plans = [{**asdict(job.plan), "spec": job.spec.frozen_copy()} for job in jobs]
        print(json.dumps(plans if len(plans) != 1 else plans[0], indent=2))
    else:
        print("\n\n".join(plan_text(job.plan, job.spec.frozen_text()) for job in jobs))
    return EXIT_OK


def plan_text(plan: Plan, spec_text: str) -> str:
    """The whole plan for people: exact argv, environment, files."""
    from launcher.slurm.script import script

    job, launch = plan.job, plan.launch
    parts = [
        f"job        {job.id}",
        f"placement  {placement_text(plan)}",
        f"backend    {launch.backend}: {launch.reason}",
        f"workdir    {_quoted(job.workdir)}",
        _section("starts (in the job directory)", [_joined(plan.argv)]),
        _section("the batch script", script(plan, job.attempt).splitlines() if launch.backend == "slurm" else []),
        _section("each rank runs", [_joined(job.command)]),
        _section("variables set", [f"{name}={_quoted(value)}" for name, value in sorted(launch.environment.items())]),
        _section("variables of the ranks alone", [f"{name}={_quoted(value)}" for name, value in job.env.items()]),
        _section("secrets (inherited, hidden in logs)", list(job.secrets)),
        _section("inherited variables removed", list(launch.scrubbed)),
        _section("files written", list(plan.files)),
        _section("spec.yaml", spec_text.rstrip().split("\n")),
    ]
    return "\n".join(part for part in parts if part)


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {printable(line)}" for line in lines)]) if lines else ""


def _quoted(text: str) -> str:
    """As a shell would need it; characters that a terminal cannot show are written as bash's $'...'."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + text.encode("utf-8", "surrogateescape").decode("latin-1").translate(_ESCAPES) + "'"


def _joined(argv: Sequence[str]) -> str:
    return " ".join(_quoted(argument) for argument in argv)

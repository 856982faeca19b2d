"""From a file name and options to a job directory that is ready to start."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from launcher import facts, loader, preflight
from launcher.errors import UsageError
from launcher.paths import JobPaths, jobs_root, new_id
from launcher.plan import Plan
from launcher.planning import make_plan
from launcher.record import EventLog, own_identity
from launcher.shipped import find_spec
from launcher.spec import Spec


@dataclass(frozen=True)
class Prepared:
    """A job that could start now; nothing has been written."""

    spec: Spec
    plan: Plan
    job: JobPaths


def prepare(file: str, overrides: Sequence[str], jobs_dir: str | None) -> Prepared:
    """Load, look at the host, plan and check.

    Args:
        file: a path, or the name of a ready-made job.
        overrides: ``a.b=c`` texts.
        jobs_dir: the ``--jobs-dir`` option.

    Raises:
        UsageError, SpecError, PlanError: naming what is wrong.
    """
    path = find_spec(file)
    spec = loader.load(path, overrides, shown_as=file if Path(file) == path else str(path))
    job = JobPaths(jobs_root(jobs_dir) / new_id(spec.name))
    plan = make_plan(spec, facts.collect(), job)
    preflight.check(plan, os.environ)
    return Prepared(spec, plan, job)


def write(prepared: Prepared) -> EventLog:
    """Make the job directory with its frozen spec and plan, and note the submission.

    Raises:
        UsageError: where the directory cannot be made or written.
    """
    job = prepared.job
    job.create()
    try:
        job.spec.write_text(frozen_text(prepared.spec), "ascii")
        job.plan.write_text(prepared.plan.to_json(), "ascii")
    except OSError as error:
        raise UsageError(f"the job directory {job.root} cannot be written: {error.strerror}") from error
    events = EventLog(job)
    plan = prepared.plan
    events.add("submitted", id=job.id, name=plan.name, ranks=plan.ranks, backend=plan.backend, **own_identity())
    return events


def frozen_text(spec: Spec) -> str:
    """The resolved spec as YAML, from which the same spec can be loaded again.  ASCII only: other characters are escapes."""
    return yaml.safe_dump(spec.frozen_copy(), sort_keys=False, allow_unicode=False, width=4096, default_flow_style=False)

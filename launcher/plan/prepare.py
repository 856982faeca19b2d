"""From a file name and options to job directories that are ready to start."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import UsageError
from launcher.host.files import replace_text
from launcher.jobdir.paths import JobPaths, jobs_root, new_id
from launcher.jobdir.plan import Plan
from launcher.plan import facts, preflight
from launcher.plan.planning import make_plan
from launcher.spec import loader
from launcher.spec.model import Spec

QuerySite = Callable[[Sequence[tuple[Spec, Plan]]], Sequence[str]]


@dataclass(frozen=True)
class Prepared:
    """A job that could start now; nothing has been written."""

    spec: Spec
    plan: Plan
    job: JobPaths
    warnings: tuple[str, ...] = ()
    """What people should know before it starts."""


def load(file: str, overrides: Sequence[str]) -> list[Spec]:
    """Load the spec of a file, or of a ready-made job; several if it has variants, which then are of one group.

    Raises:
        UsageError, SpecError: naming what is wrong.
    """
    return loader.load(loader.Source.find(file), overrides, new_id)


def prepare(
    file: str,
    overrides: Sequence[str],
    jobs_dir: str | None,
    *,
    query_site: QuerySite | None = None,
    cwd: str | None = None,
) -> list[Prepared]:
    """Load, collect the host's facts, plan and check: one job, or one for each variant, of which the first holds all warnings.

    Args:
        file: a path, or the name of a ready-made job.
        overrides: ``a.b=c`` texts.
        jobs_dir: the ``--jobs-dir`` option.
        query_site: asks SLURM about the jobs that go there; returns warnings.
        cwd: the directory of jobs whose YAML names none, and the start of relative ones; by default the present one.

    Raises:
        UsageError, SpecError, PlanError: naming what is wrong.
    """
    root = jobs_root(jobs_dir)

    @functools.cache
    def collect_facts(mpirun: str | None) -> facts.Facts:
        found = facts.collect(mpirun)
        return found if cwd is None else replace(found, cwd=cwd)

    first, *others = [_prepare(spec, collect_facts(spec.backend.mpirun), root) for spec in load(file, overrides)]
    for_slurm = [(job.spec, job.plan) for job in (first, *others) if job.plan.launch.backend == "slurm"]
    if query_site is not None and for_slurm:
        first = replace(first, warnings=tuple(query_site(for_slurm)))
    return [first, *others]


def _prepare(spec: Spec, host: facts.Facts, root: Path) -> Prepared:
    job = JobPaths(root / new_id(spec.name))
    plan = make_plan(spec, host, job)
    preflight.check(plan, os.environ, spec)
    return Prepared(spec, plan, job)


def write_directory(prepared: Prepared) -> None:
    """Make the job directory with its frozen spec and plan, so that it survives a power failure; all of it, or nothing.

    Raises:
        UsageError: if the directory cannot be made or written.
    """
    job = prepared.job
    job.create()
    try:
        replace_text(job.spec, prepared.spec.frozen_text(), durable=True)
        prepared.plan.write(job.plan, durable=True)
        for directory in (*job.directories(), job.root.parent):
            _sync(directory)
    except OSError as error:
        shutil.rmtree(job.root, ignore_errors=True)
        raise UsageError(f"the job directory {job.root} cannot be written: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(job.root, ignore_errors=True)
        raise


def _sync(directory: Path) -> None:
    """Make a directory's entries durable."""
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)

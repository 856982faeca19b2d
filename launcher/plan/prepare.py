"""From a file name and options to job directories that are ready to start, and from there into the daemon's hands."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.daemon.http.messages import JobView, Submission
from launcher.errors import LauncherError, UnreachableError, UsageError
from launcher.host.files import replace_text
from launcher.host.processes import own_identity, process_table
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths, jobs_root, new_id
from launcher.jobdir.plan import Plan
from launcher.plan import facts, preflight
from launcher.plan.planning import make_plan
from launcher.spec import loader
from launcher.spec.model import Spec
from launcher.spec.source import find_spec

if TYPE_CHECKING:
    from launcher.daemon.http.client import Client  # looking at a job's YAML needs no HTTP


@dataclass(frozen=True)
class Prepared:
    """A job that could start now; nothing has been written."""

    spec: Spec
    plan: Plan
    job: JobPaths
    warnings: tuple[str, ...] = ()
    """What people should know before it starts."""


def load(file: str, overrides: Sequence[str]) -> list[Spec]:
    """The spec of a file, or of a ready-made job; several where it has variants, which then are of one group.

    Raises:
        UsageError, SpecError: naming what is wrong.
    """
    path = find_spec(file)
    return loader.load_all(path, overrides, shown_as=file if Path(file) == path else str(path), group_of=new_id)


def prepare(
    file: str, overrides: Sequence[str], jobs_dir: str | None, *, ask: bool = True, cwd: str | None = None
) -> list[Prepared]:
    """Load, look at the host, plan and check: one job, or one for each variant, of which the first holds all warnings.

    Args:
        file: a path, or the name of a ready-made job.
        overrides: ``a.b=c`` texts.
        jobs_dir: the ``--jobs-dir`` option.
        ask: whether a scheduler is asked as well, which may take some seconds.
        cwd: where a job runs whose YAML names no directory, and from where a relative one counts; by default here.

    Raises:
        UsageError, SpecError, PlanError: naming what is wrong.
    """
    root = jobs_root(jobs_dir)

    @functools.cache
    def look(mpirun: str | None) -> facts.Facts:
        found = facts.collect(mpirun)
        return found if cwd is None else replace(found, cwd=cwd)

    first, *others = [_prepare(spec, look(spec.backend.mpirun), root) for spec in load(file, overrides)]
    if not ask or all(job.plan.launch.backend != "slurm" for job in (first, *others)):
        return [first, *others]
    from launcher.slurm import examine

    warnings = examine.check([(job.spec, job.plan) for job in (first, *others)], os.environ)
    return [replace(first, warnings=tuple(warnings)), *others]


def _prepare(spec: Spec, host: facts.Facts, root: Path) -> Prepared:
    job = JobPaths(root / new_id(spec.name))
    plan = make_plan(spec, host, job)
    preflight.check(plan, os.environ, spec)
    return Prepared(spec, plan, job)


def write(prepared: Prepared) -> EventLog:
    """Make the job directory of a job that this process itself runs, and note the submission.

    Raises:
        UsageError: where the directory cannot be made or written.
    """
    write_directory(prepared)
    events = EventLog(prepared.job)
    plan = prepared.plan
    who = {**own_identity(), "processes": process_table()}
    events.add("submitted", id=plan.job.id, name=plan.job.name, ranks=plan.placement.ranks, backend=plan.launch.backend, **who)
    return events


def write_directory(prepared: Prepared) -> None:
    """Make the job directory with its frozen spec and plan, so that it survives a power failure; all of it, or nothing.

    Raises:
        UsageError: where the directory cannot be made or written.
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


def hand_over(
    client: Client, prepared: Prepared, depends_on: Sequence[str], priority: int | None, environment: Mapping[str, str]
) -> JobView:
    """Write a job's directory and give it to the daemon.  A lost answer is asked for again: the id makes that harmless.

    Args:
        client: the daemon.
        prepared: the job.
        depends_on: ids of jobs that must have succeeded.
        priority: instead of the spec's.
        environment: the submitter's.

    Raises:
        UsageError: where the daemon refuses the job; its directory is then removed.
        UnreachableError: where it is not known whether the daemon has it; the job is then marked as cancelled, so that it does
            not run behind the user's back.
    """
    if priority is not None:
        prepared = replace(prepared, plan=prepared.plan.for_job(priority=priority))
    write_directory(prepared)
    plan, job = prepared.plan, prepared.job
    submission = Submission(job.id, str(job.root), environment, plan.job.priority, tuple(depends_on), plan.job.group)
    try:
        return client.submit(submission)
    except UnreachableError as error:
        withdraw(job)
        raise UnreachableError(f"{error}; {job.id} was not started, and will not be: submit it again") from error
    except LauncherError:
        shutil.rmtree(job.root, ignore_errors=True)
        raise
    except BaseException:
        withdraw(job)
        raise


def withdraw(job: JobPaths) -> None:
    """Mark a job as cancelled in its directory, where the daemon finds it whatever else it knows."""
    with contextlib.suppress(OSError):
        job.cancel.touch()


def hand_over_all(
    client: Client,
    jobs: Sequence[Prepared],
    depends_on: Sequence[str] = (),
    priority: int | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[JobView]:
    """Give jobs to the daemon: all of them, or none.

    Args:
        client: the daemon.
        jobs: one, or the variants of a group.
        depends_on: ids of jobs that must have succeeded.
        priority: instead of the spec's.
        interrupted: asked after each; True takes all back.

    Raises:
        KeyboardInterrupt: where `interrupted` said so; nothing runs.
        UsageError, UnreachableError: as `hand_over`; those that were given before are cancelled.
    """
    given: list[JobView] = []
    try:
        for prepared in jobs:
            given.append(hand_over(client, prepared, depends_on, priority, os.environ))
            if interrupted():
                raise KeyboardInterrupt
    except BaseException:
        for view in given:
            withdraw(JobPaths(Path(view.dir)))
            with contextlib.suppress(LauncherError):
                client.cancel(view.id)
        raise
    return given

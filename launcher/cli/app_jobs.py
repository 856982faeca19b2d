"""The commands about jobs that were submitted: their arguments and options."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.app import app
from launcher.cli.guard import guarded
from launcher.cli.options import Attempt, Job, Jobs, JobsDir, Json, Rank
from launcher.errors import UsageError

Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")]


@app.command(name="ls", help="List the jobs, oldest first.")
@guarded
def list_(
    states: Annotated[list[str], typer.Option("--state", metavar="S", help="Of this state alone; may be repeated.")] = [],  # noqa: B006
    group: Annotated[str | None, typer.Option("--group", metavar="G", help="Of this group alone.")] = None,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """List the jobs; returns the exit code."""
    from launcher.cli.listing import list_jobs

    return list_jobs(jobs_dir, as_json=as_json, states=states, group=group)


@app.command(
    short_help="Show a job: state, reason, attempts, progress.",
    help="Show one job: state, exit code, reason, attempts, progress, and the failing rank's last lines; or a group.",
)
@guarded
def show(job: Job, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Show one job, or a group; returns the exit code."""
    from launcher.cli import showing

    return showing.show(job, jobs_dir, as_json=as_json)


@app.command(help="Print the output of one rank.")
@guarded
def logs(
    job: Job,
    follow: Follow = False,
    rank: Rank = 0,
    attempt: Attempt = None,
    backend: Annotated[bool, typer.Option("--backend", help="What mpirun, horovodrun or SLURM itself said.")] = False,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """Print one rank's log; returns the exit code."""
    from launcher.cli import logs as command

    return command.logs(job, jobs_dir, rank=rank, follow=follow, attempt=attempt, backend=backend, as_json=as_json)


@app.command(short_help="End jobs.", help="End jobs, and wait until all their processes are gone.")
@guarded
def cancel(
    jobs: Jobs,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Only ask.")] = False,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """Cancel jobs; returns the exit code."""
    from launcher.cli import acting

    return acting.cancel(jobs, jobs_dir, as_json=as_json, wait=not no_wait)


@app.command(
    short_help="Queue failed or cancelled jobs again.",
    help="Queue failed or cancelled jobs again, in their own directories.",
)
@guarded
def retry(jobs: Jobs, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Retry jobs; returns the exit code."""
    from launcher.cli import acting

    return acting.retry(jobs, jobs_dir, as_json=as_json)


@app.command(
    short_help="Wait for jobs, and end with their exit code.",
    help="Wait for jobs, and end with the exit code of the one that failed first (124: time is over).",
)
@guarded
def wait(
    jobs: Jobs,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Such as 90s or 2h.")] = None,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """Wait for jobs; returns the exit code."""
    from launcher.cli import acting
    from launcher.spec.quantities import parse_duration

    try:
        seconds = None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout {timeout}: {error}") from None
    return acting.wait(jobs, jobs_dir, as_json=as_json, timeout=seconds)


@app.command(help="Print what happened to a job.")
@guarded
def events(job: Job, follow: Follow = False, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Print a job's events; returns the exit code."""
    from launcher.cli import events as command

    return command.events(job, jobs_dir, follow=follow, as_json=as_json)


@app.command(
    short_help="Tables and plots of jobs in one file.",
    help="Make one report of a job, of several, or of a group's variants: tables and plots in one file.",
)
@guarded
def report(jobs: Jobs, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Make a report; returns the exit code."""
    from launcher.cli import report as command

    return command.report(jobs, jobs_dir, as_json=as_json)

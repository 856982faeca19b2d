"""The commands that take a job's YAML, their arguments and options, and the program that holds all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.guard import guarded
from launcher.cli.options import File, JobsDir, Json, Overrides
from launcher.errors import UsageError

HELP = """Run Horovod jobs with coordinated data ordering from one YAML file.

hvdgrab-launch JOB.yaml [--set a.b=c]... [--detach] [--dry-run] [--json]
hands the job to the launcher's daemon, follows it and ends with its exit code; Ctrl-C leaves it running.
The word `run` may be left out; `hvdgrab-launch run --help` lists its options."""

app = typer.Typer(
    help=HELP,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        import hvdgrab

        print(f"hvdgrab {hvdgrab.__version__}")
        raise typer.Exit(0)


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    del version


@app.command(
    short_help="Start a job and follow it (the default).",
    help="Start a job, follow it, and end with its exit code. The word `run` may be left out.",
)
@guarded
def run(
    file: File,
    overrides: Overrides = [],  # noqa: B006 - typer reads the default, and never changes it
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not follow it.")] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run it here, without the daemon; Ctrl-C stops the ranks.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and start nothing.")] = False,
    priority: Annotated[
        int | None, typer.Option("--priority", metavar="N", min=-1000, max=1000, help="Higher starts first [0].")
    ] = None,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """Submit a job and follow it, run it here, or show its plan; returns the exit code."""
    chosen = [name for name, on in (("--detach", detach), ("--foreground", foreground), ("--dry-run", dry_run)) if on]
    if len(chosen) > 1:
        raise UsageError(f"{chosen[0]} does not go with {chosen[1]}")
    if foreground and priority is not None:
        raise UsageError("--priority is for the daemon's queue, which --foreground does without")
    if dry_run or foreground:
        from launcher.cli import run as here

        command = here.dry_run if dry_run else here.foreground
        return command(file, overrides, jobs_dir, as_json=as_json)
    from launcher.cli.submitting import submit

    return submit(file, overrides, jobs_dir, as_json=as_json, detach=detach, priority=priority)


@app.command(short_help="Check a job's YAML.", help="Check a job's YAML against this host, and start nothing.")
@guarded
def validate(file: File, overrides: Overrides = [], as_json: Json = False, jobs_dir: JobsDir = None) -> int:  # noqa: B006
    """Check a job's YAML; returns the exit code."""
    from launcher.cli import run as here

    return here.validate(file, overrides, jobs_dir, as_json=as_json)


@app.command(short_help="The JSON schema of a job's YAML.", help="Print the JSON schema of a job's YAML, for editors.")
@guarded
def schema(as_json: Json = False) -> int:
    """Print the schema, which is JSON in any case; returns the exit code."""
    del as_json
    from launcher.cli import run as here

    return here.schema()


@app.command(
    short_help="Show what this host offers and what is missing.",
    help="Show what this host offers, what is missing, and how to get it; with a job, also whether its hosts answer.",
)
@guarded
def doctor(
    file: Annotated[str | None, typer.Argument(metavar="[JOB.yaml]", help="A job whose hosts are tried.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Ask SLURM, too: partitions, limits, PMI types.")] = False,
    overrides: Overrides = [],  # noqa: B006
    as_json: Json = False,
) -> int:
    """Look at the host; returns the exit code."""
    from launcher.cli.doctor.main import main

    return main(file, overrides, slurm=slurm, as_json=as_json)


# Their modules register the other commands; the order here is that of the help.
from launcher.cli import app_daemon, app_jobs  # noqa: E402, F401

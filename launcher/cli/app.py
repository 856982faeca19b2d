"""The commands, their arguments and options.  What they do is in `launcher.cli.run` and `launcher.cli.jobs`."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from launcher.errors import EXIT_INTERRUPTED, EXIT_OK, LauncherError, UsageError

COMMANDS = ("run", "validate", "ls", "show", "logs", "doctor")

HELP = """Run Horovod jobs with coordinated data ordering from one YAML file.

hvdgrab-launch JOB.yaml [--set a.b=c]... [--dry-run] [--json]
starts the job, follows it and ends with its exit code. The word `run` may be left out;
`hvdgrab-launch run --help` lists its options."""

app = typer.Typer(
    help=HELP,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[str, typer.Argument(metavar="JOB.yaml", help="The job, or the name of a ready-made one, such as quickstart.")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="a.b=c", help="Replace one setting; may be repeated.")]
JobsDir = Annotated[
    str | None, typer.Option("--jobs-dir", metavar="DIR", help="Directory of all jobs [$HVDGRAB_JOBS, else ./jobs].")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job's id, a unique beginning of it, or a name (its newest job).")]


def _guarded(command: Callable[..., int]) -> Callable[..., None]:
    """A command whose errors end it with one message and their exit code instead of a traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            _check_directory()
            code = command(*args, **kwargs)
        except LauncherError as error:
            print(_message(error), file=sys.stderr)
            code = error.exit_code
        except BrokenPipeError:
            code = _reader_gone()
        except KeyboardInterrupt:
            print("interrupted; nothing was started" if command.__name__ == "run" else "interrupted", file=sys.stderr)
            code = EXIT_INTERRUPTED
        raise typer.Exit(code)

    return guarded


def _check_directory() -> None:
    """Relative paths, mpirun and every rank start from the current directory."""
    try:
        os.getcwd()  # noqa: PTH109 - only whether it answers
    except FileNotFoundError:
        raise UsageError("the current directory has been deleted: change to one that exists") from None


def _reader_gone() -> int:
    """The reader of the output has gone, as with ``| head``: no error, and nothing is written at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_OK


def _message(error: LauncherError) -> str:
    """The text for a terminal: bytes that are no text are shown as escapes."""
    return f"hvdgrab-launch: {error}".encode("utf-8", "backslashreplace").decode("utf-8")


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


@app.command(help="Start a job, follow it, and end with its exit code (the default command).")
@_guarded
def run(
    file: File,
    overrides: Overrides = [],  # noqa: B006 - typer reads the default, and never changes it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and start nothing.")] = False,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """Start a job in the foreground, or show its plan; returns the exit code."""
    from launcher.cli import run as commands

    if dry_run:
        return commands.dry_run(file, overrides, jobs_dir, as_json=as_json)
    return commands.run(file, overrides, jobs_dir, as_json=as_json)


@app.command(help="Check a job's YAML against this host, and start nothing.")
@_guarded
def validate(file: File, overrides: Overrides = [], as_json: Json = False, jobs_dir: JobsDir = None) -> int:  # noqa: B006
    """Check a job's YAML; returns the exit code."""
    from launcher.cli import run as commands

    return commands.validate(file, overrides, jobs_dir, as_json=as_json)


@app.command(name="ls", help="List the jobs, oldest first.")
@_guarded
def list_(as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """List the jobs; returns the exit code."""
    from launcher.cli import jobs

    return jobs.list_jobs(jobs_dir, as_json=as_json)


@app.command(help="Show one job: state, exit code, reason, progress, and the failing rank's last lines.")
@_guarded
def show(job: JobId, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Show one job; returns the exit code."""
    from launcher.cli import jobs

    return jobs.show(job, jobs_dir, as_json=as_json)


@app.command(help="Print the output of one rank.")
@_guarded
def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, typer.Option("--rank", min=0, metavar="R", help="Which rank.")] = 0,
    jobs_dir: JobsDir = None,
) -> int:
    """Print one rank's log; returns the exit code."""
    from launcher.cli import jobs

    return jobs.logs(job, jobs_dir, rank=rank, follow=follow)


@app.command(help="Show what this host offers, what is missing, and how to get it.")
@_guarded
def doctor(as_json: Json = False) -> int:
    """Look at the host; returns the exit code."""
    from launcher.doctor import main

    return main(as_json)

"""The program and its commands: their arguments and options, and what turns an error into a message and an exit code.

A command's docstring is its help, and it returns its exit code.  It imports the module that does the work.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from launcher.cli.texts import complain
from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, LauncherError, UsageError

HELP = """Run Horovod jobs with coordinated data ordering from one YAML file.

hvdgrab-launch JOB.yaml [--set a.b=c]... [--detach] [--dry-run] [--json]
hands the job to the launcher's daemon, follows it and ends with its exit code; Ctrl-C leaves it running.
The word `run` may be left out; `hvdgrab-launch run --help` lists its options."""

_AFTER_INTERRUPT = {"run": "nothing was started", "validate": "nothing was started", "cancel": "what was asked to end ends"}
"""What Ctrl-C means, by command, if the command does not handle it itself."""

File = Annotated[str, typer.Argument(metavar="JOB.yaml", help="The job, or the name of a ready-made one, such as quickstart.")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="a.b=c", help="Replace one setting; may be repeated.")]
JobsDir = Annotated[
    str | None, typer.Option("--jobs-dir", metavar="DIR", help="Directory of all jobs [$HVDGRAB_JOBS, else ./jobs].")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
Job = Annotated[str, typer.Argument(metavar="ID", help="A job's id, a unique beginning of it, or a name (its newest job).")]
Jobs = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids, unique beginnings, names (the newest job), or groups.", show_default=False),
]
Rank = Annotated[int, typer.Option("--rank", min=0, metavar="R", help="Which rank.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, metavar="N", help="That attempt alone.")]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")]


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """Make a function that returns an exit code into a command of typer: an expected error becomes one message on stderr."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            _check_directory()
            code = command(*args, **kwargs)
            if sys.stdout is not None:  # closed by whoever started the command
                sys.stdout.flush()
        except LauncherError as error:
            complain(str(error))
            code = error.exit_code
            if kwargs.get("as_json"):
                print(json.dumps({"error": str(error), "exit_code": code}))
        except BrokenPipeError:
            _discard_output()  # as with ``| head``, which is no error
            code = EXIT_OK
        except OSError as error:
            complain(f"{error.filename or 'the output'}: {error.strerror}")
            _discard_output()
            code = EXIT_FAILED
        except KeyboardInterrupt:
            complain(f"interrupted; {_AFTER_INTERRUPT.get(command.__name__, 'what runs goes on')}")
            code = EXIT_INTERRUPTED
        raise typer.Exit(code)

    return run


def _check_directory() -> None:
    """Refuse a deleted current directory: relative paths, mpirun and every rank start from it."""
    try:
        os.getcwd()  # noqa: PTH109 - only whether it answers
    except FileNotFoundError:
        raise UsageError("the current directory has been deleted: change to one that exists") from None


def _discard_output() -> None:
    """Discard buffered output, because the reader closed the pipe: the interpreter would fail on flushing it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    help=HELP,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
daemon = typer.Typer(
    short_help="start, stop, restart, status, run, unit.",
    help="Start, stop, restart or look at the daemon that runs the jobs; it starts by itself with the first job.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(daemon, name="daemon")


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


@app.command(short_help="Start a job and follow it (the default).")
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
    """Start a job, follow it, and end with its exit code. The word `run` may be left out."""
    chosen = [name for name, on in (("--detach", detach), ("--foreground", foreground), ("--dry-run", dry_run)) if on]
    if len(chosen) > 1:
        raise UsageError(f"{chosen[0]} does not go with {chosen[1]}")
    if foreground and priority is not None:
        raise UsageError("--priority is for the daemon's queue, which --foreground does without")
    if dry_run:
        from launcher.cli import planned

        return planned.dry_run(file, overrides, jobs_dir, as_json=as_json)
    if foreground:
        from launcher.cli.foreground import run_here

        return run_here(file, overrides, jobs_dir, as_json=as_json)
    from launcher.cli.submitting import submit

    return submit(file, overrides, jobs_dir, as_json=as_json, detach=detach, priority=priority)


@app.command(short_help="Check a job's YAML.")
@guarded
def validate(file: File, overrides: Overrides = [], as_json: Json = False, jobs_dir: JobsDir = None) -> int:  # noqa: B006
    """Check a job's YAML against this host, and start nothing."""
    from launcher.cli import planned

    return planned.validate(file, overrides, jobs_dir, as_json=as_json)


@app.command(short_help="The JSON schema of a job's YAML.")
@guarded
def schema(as_json: Json = False) -> int:
    """Print the JSON schema of a job's YAML, for editors."""
    del as_json  # it is JSON in any case
    from launcher.cli import planned

    return planned.schema()


@app.command(short_help="Show what this host offers and what is missing.")
@guarded
def doctor(
    file: Annotated[str | None, typer.Argument(metavar="[JOB.yaml]", help="A job whose hosts are tried.")] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Ask SLURM, too: partitions, limits, PMI types.")] = False,
    overrides: Overrides = [],  # noqa: B006
    as_json: Json = False,
) -> int:
    """Show what this host offers, what is missing, and how to get it; with a job, also whether its hosts answer."""
    from launcher.cli.doctor.main import main

    return main(file, overrides, slurm=slurm, as_json=as_json)


@app.command(name="ls")
@guarded
def list_(
    states: Annotated[list[str], typer.Option("--state", metavar="S", help="Of this state alone; may be repeated.")] = [],  # noqa: B006
    group: Annotated[str | None, typer.Option("--group", metavar="G", help="Of this group alone.")] = None,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """List the jobs, oldest first."""
    from launcher.cli.find import ls

    return ls(jobs_dir, as_json=as_json, states=states, group=group)


@app.command(short_help="Show a job: state, reason, attempts, progress.")
@guarded
def show(job: Job, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Show one job: state, exit code, reason, attempts, progress, and the failing rank's last lines; or a group."""
    from launcher.cli import showing

    return showing.show(job, jobs_dir, as_json=as_json)


@app.command()
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
    """Print the output of one rank."""
    from launcher.cli import logs as command

    return command.logs(job, jobs_dir, rank=rank, follow=follow, attempt=attempt, backend=backend, as_json=as_json)


@app.command(short_help="End jobs.")
@guarded
def cancel(
    jobs: Jobs,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Only ask.")] = False,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """End jobs, and wait until all their processes are gone."""
    from launcher.cli import acting

    return acting.cancel(jobs, jobs_dir, as_json=as_json, wait=not no_wait)


@app.command(short_help="Queue failed or cancelled jobs again.")
@guarded
def retry(jobs: Jobs, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Queue failed or cancelled jobs again, in their own directories."""
    from launcher.cli import acting

    return acting.retry(jobs, jobs_dir, as_json=as_json)


@app.command(short_help="Wait for jobs, and end with their exit code.")
@guarded
def wait(
    jobs: Jobs,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Such as 90s or 2h.")] = None,
    as_json: Json = False,
    jobs_dir: JobsDir = None,
) -> int:
    """Wait for jobs, and end with the exit code of the one that failed first (124: time is over)."""
    from launcher.cli import acting
    from launcher.spec.quantities import parse_duration

    try:
        seconds = None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout {timeout}: {error}") from None
    return acting.wait(jobs, jobs_dir, as_json=as_json, timeout=seconds)


@app.command()
@guarded
def events(job: Job, follow: Follow = False, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Print what happened to a job."""
    from launcher.cli import logs as command

    return command.events(job, jobs_dir, follow=follow, as_json=as_json)


@app.command(short_help="Tables and plots of jobs in one file.")
@guarded
def report(jobs: Jobs, as_json: Json = False, jobs_dir: JobsDir = None) -> int:
    """Make one report of a job, of several, or of a group's variants: tables and plots in one file."""
    from launcher.cli import showing

    return showing.report(jobs, jobs_dir, as_json=as_json)


def _add_daemon_command(name: str, text: str) -> None:
    @daemon.command(name=name, help=text)
    @guarded
    def command(as_json: Json = False) -> int:
        from launcher.cli import daemon as commands

        by_name = {"start": commands.start, "stop": commands.stop, "restart": commands.restart, "status": commands.status}
        return {**by_name, "unit": commands.unit}[name](as_json=as_json)


_add_daemon_command("start", "Start the daemon in the background, unless it runs.")
_add_daemon_command("stop", "End the daemon. Running jobs go on, and the next daemon finds them.")
_add_daemon_command("restart", "End the daemon and start another one, such as that of a new version. Running jobs go on.")
_add_daemon_command("status", "Show the daemon: since when it runs, its jobs, slots and files. Exit code 3 if none answers.")


@daemon.command(name="run")
@guarded
def run_daemon() -> int:
    """Be the daemon, in the foreground, for a service manager."""
    from launcher.cli import daemon as commands

    return commands.run()


_add_daemon_command("unit", "Print a systemd user unit for the daemon.")

"""The commands about the daemon: their options."""

from __future__ import annotations

import typer

from launcher.cli.app import app
from launcher.cli.guard import guarded
from launcher.cli.options import Json

daemon = typer.Typer(
    short_help="start, stop, restart, status, run, unit.",
    help="Start, stop, restart or look at the daemon that runs the jobs; it starts by itself with the first job.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(daemon, name="daemon")


@daemon.command(help="Start the daemon in the background, unless it runs.")
@guarded
def start(as_json: Json = False) -> int:
    """Start it; returns the exit code."""
    from launcher.cli import daemon as commands

    return commands.start(as_json=as_json)


@daemon.command(help="End the daemon. Running jobs go on, and the next daemon finds them.")
@guarded
def stop(as_json: Json = False) -> int:
    """End it; returns the exit code."""
    from launcher.cli import daemon as commands

    return commands.stop(as_json=as_json)


@daemon.command(help="End the daemon and start another one, such as that of a new version. Running jobs go on.")
@guarded
def restart(as_json: Json = False) -> int:
    """End it and start another one; returns the exit code."""
    from launcher.cli import daemon as commands

    return commands.restart(as_json=as_json)


@daemon.command(help="Show the daemon: since when it runs, its jobs, slots and files. Exit code 3 where none answers.")
@guarded
def status(as_json: Json = False) -> int:
    """Show it; returns the exit code."""
    from launcher.cli import daemon as commands

    return commands.status(as_json=as_json)


@daemon.command(name="run", help="Be the daemon, in the foreground, for a service manager.")
@guarded
def run_here() -> int:
    """Be the daemon; returns the exit code."""
    from launcher.cli import daemon as commands

    return commands.run()


@daemon.command(help="Print a systemd user unit for the daemon.")
@guarded
def unit(as_json: Json = False) -> int:
    """Print it; returns the exit code."""
    from launcher.cli import daemon as commands

    return commands.unit(as_json=as_json)

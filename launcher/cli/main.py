"""Entry point of ``hvdgrab-launch``.

Slow imports happen inside `main`, which handles a Ctrl-C meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launcher.errors import EXIT_INTERRUPTED

_ABOUT_ITSELF = ("--help", "-h", "--version")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 the job failed (or the failing rank's own code), 2 wrong usage or spec, 3 the daemon or the
        scheduler cannot be reached, 130 interrupted.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        from launcher.cli.app import app

        app(args=with_default_command(given), prog_name="hvdgrab-launch")
    except SystemExit as end:
        return _code(end)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def commands() -> set[str]:
    """The words that are commands."""
    from launcher.cli.app import app

    named = {command.name or (command.callback.__name__ if command.callback else "") for command in app.registered_commands}
    return named | {str(group.name) for group in app.registered_groups}


def with_default_command(argv: Sequence[str]) -> list[str]:
    """The arguments with ``run`` in front, if a job's YAML stands in the place of a command.

    A file that is called like a command is given as ``./ls``.
    """
    if not argv or argv[0] in commands() or argv[0] in _ABOUT_ITSELF:
        return list(argv) or ["--help"]
    return ["run", *argv]


def _code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


if __name__ == "__main__":
    sys.exit(main())

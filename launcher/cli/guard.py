"""What surrounds every command: mistakes become one message and an exit code, never a traceback."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import typer

from launcher.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, LauncherError, UsageError

_AFTER_INTERRUPT = {"run": "nothing was started", "validate": "nothing was started", "cancel": "what was asked to end ends"}
"""What Ctrl-C means, by command, where it does not handle that itself."""


def guarded(command: Callable[..., int]) -> Callable[..., None]:
    """A command that returns its exit code, as typer wants it: errors that were raised on purpose are printed on stderr."""

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
            _write_no_more()  # as with ``| head``, which is no error
            code = EXIT_OK
        except OSError as error:
            complain(f"{error.filename or 'the output'}: {error.strerror}")
            _write_no_more()
            code = EXIT_FAILED
        except KeyboardInterrupt:
            complain(f"interrupted; {_AFTER_INTERRUPT.get(command.__name__, 'what runs goes on')}")
            code = EXIT_INTERRUPTED
        raise typer.Exit(code)

    return run


def complain(text: str) -> None:
    """A line on stderr, safe for a terminal; bytes that are no text are shown as escapes."""
    from launcher.cli.terminal import printable

    print(printable(f"hvdgrab-launch: {text}"), file=sys.stderr, flush=True)


def warn_of(texts: Iterable[str]) -> None:
    """Lines on stderr about what holds nobody up."""
    for text in texts:
        complain(f"warning: {text}")


def _check_directory() -> None:
    """Relative paths, mpirun and every rank start from the current directory."""
    try:
        os.getcwd()  # noqa: PTH109 - only whether it answers
    except FileNotFoundError:
        raise UsageError("the current directory has been deleted: change to one that exists") from None


def _write_no_more() -> None:
    """Nobody takes the output any more: nothing of it is written at the interpreter's end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Errors of the launcher.

Every error is one that a person can act on: the command line prints its text and ends with its exit code, never with a
traceback::

    LauncherError             exit code 1
    ├── UsageError            2   the command line cannot be understood, or names a job that is not there
    ├── SpecError             2   the YAML or a ``--set`` is wrong; holds one `Problem` per fault
    ├── PlanError             2   the spec is right but cannot run on this host, or lacks a consent
    ├── BackendError          1   the program that should start the ranks could not be started
    └── UnreachableError      3   the daemon or the scheduler cannot be reached
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130


class LauncherError(Exception):
    """Base class: catch this to catch every error that the launcher raises on purpose."""

    exit_code = EXIT_FAILED


class UsageError(LauncherError):
    """The command line cannot be understood, or names something that is not there."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True)
class Problem:
    """One fault of a spec: where it is and what would be right."""

    source: str
    """The file's path as the user wrote it, or the ``--set`` option in full; '' if it is not known."""
    line: int | None
    """Line in that file, from 1; None for an option."""
    path: str
    """Dotted path of the setting, or '' for the document as a whole."""
    message: str
    """What is wrong and what to write instead."""

    def __str__(self) -> str:
        place = self.source if self.line is None else f"{self.source}:{self.line}"
        parts = (_short(place, 300), _short(self.path, 300), _short(self.message, 2_000))
        return ": ".join(part for part in parts if part)


def _short(text: str, most: int) -> str:
    """What a person can read: a fault may quote a word of a megabyte."""
    return text if len(text) <= most else f"{text[: most - 40]}… ({len(text)} characters)"


class SpecError(LauncherError):
    """The YAML, or a ``--set`` option, is wrong."""

    exit_code = EXIT_USAGE

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class PlanError(LauncherError):
    """The spec is well formed, but cannot run on this host as it stands."""

    exit_code = EXIT_USAGE

    def __init__(self, fault: str | Sequence[Problem]) -> None:
        self.problems = () if isinstance(fault, str) else tuple(fault)
        super().__init__(fault if isinstance(fault, str) else "\n".join(str(problem) for problem in self.problems))


class BackendError(LauncherError):
    """The program that should start the ranks could not be started."""


class UnreachableError(LauncherError):
    """The daemon or the scheduler cannot be reached, or cannot take what it is asked now."""

    exit_code = EXIT_UNREACHABLE

"""What one rank has to run, as its wrapper reads it from the plan."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.jobdir.paths import AttemptPaths
from launcher.jobdir.variables import own_variables

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Where MPIs and schedulers say which rank this is, in the order in which they are asked."""


@dataclass(frozen=True)
class Task:
    """One rank's program, and how it is to be ended."""

    command: tuple[bytes, ...]
    environment: dict[bytes, bytes]
    workdir: str
    secrets: tuple[str, ...]
    """Values to hide in the output."""
    time_limit: float | None = None
    """Seconds."""
    checkpoint_signal: str | None = None
    """Name without SIG, such as USR1: what makes the training save its state."""
    before_limit: float = 0.0
    """Seconds between that signal and the end of the time limit."""


def find_rank(environment: Mapping[str, str]) -> int:
    """This process's rank; 0 where no MPI or scheduler says one."""
    for name in RANK_VARIABLES:
        value = environment.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return 0


def read_plan(attempt: AttemptPaths) -> dict[str, Any]:
    """The attempt's plan as plain data, or the job's where the attempt has none of its own.

    Raises:
        OSError, ValueError: where it cannot be read.
    """
    path = attempt.plan if attempt.plan.exists() else attempt.job.plan
    data = json.loads(path.read_text("ascii"))
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no plan")
    return data


def read_task(attempt: AttemptPaths, rank: int, inherited: Mapping[str, str]) -> Task:
    """The rank's program from the attempt's plan.

    Args:
        attempt: the attempt.
        rank: the last ones run the plan's server command, where it has such ranks.
        inherited: the wrapper's own environment; the plan's variables are put on top.

    Raises:
        OSError, ValueError, KeyError: where the plan cannot be read.
    """
    plan = read_plan(attempt)
    environment = {**inherited, **plan["environment"], **plan["rank_environment"], **own_variables(attempt)}
    server_ranks = plan.get("server_ranks", 0)
    server = bool(server_ranks) and rank >= plan["ranks"] - server_ranks
    return Task(
        command=tuple(_bytes(argument) for argument in plan["server_command" if server else "command"]),
        environment={_bytes(name): _bytes(value) for name, value in environment.items()},
        workdir=plan["workdir"],
        secrets=tuple(inherited[name] for name in plan["secrets"] if name in inherited),
        time_limit=plan.get("time_limit"),
        checkpoint_signal=plan.get("checkpoint_signal"),
        before_limit=plan.get("before_limit", 0.0),
    )


def _bytes(text: str) -> bytes:
    """The bytes that a text stands for, whatever the locale says: undecodable ones were kept as surrogates."""
    return text.encode("utf-8", "surrogateescape")


def find_program(command: bytes, environment: Mapping[bytes, bytes], workdir: str) -> bytes | None:
    """The file that a command's first word names on the task's own PATH, from its own directory; None where there is none."""
    if b"/" in command:
        path = os.path.join(os.fsencode(workdir), command)  # noqa: PTH118 - bytes
        return command if os.access(path, os.X_OK) and os.path.isfile(path) else None  # noqa: PTH113 - bytes
    for directory in environment.get(b"PATH", os.fsencode(os.defpath)).split(b":"):
        path = os.path.join(os.fsencode(workdir), directory, command)  # noqa: PTH118 - bytes
        if os.access(path, os.X_OK) and os.path.isfile(path):  # noqa: PTH113 - bytes
            return path
    return None

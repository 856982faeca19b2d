"""What is checked on the host before anything is written or started, so that the user learns it before the queue does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from launcher.errors import PlanError
from launcher.plan import Plan
from launcher.process.output import SHORTEST_SECRET
from launcher.process.task import find_program


def check(plan: Plan, inherited: Mapping[str, str]) -> None:
    """Check working directory, program and secrets of a plan.

    Args:
        plan: what would be run.
        inherited: the submitter's environment.

    Raises:
        PlanError: naming everything that was found.
    """
    faults = [*_secrets(plan, inherited), *_places(plan, inherited)]
    if faults:
        raise PlanError("\n".join(faults))


def _secrets(plan: Plan, inherited: Mapping[str, str]) -> Iterator[str]:
    for name in plan.secrets:
        value = inherited.get(name, "")
        if not value:
            state = "empty" if name in inherited else "not set"
            yield f"secrets: {name} is {state} in this environment; `export {name}=...` before starting the job"
        elif len(value) < SHORTEST_SECRET:
            yield f"secrets: the value of {name} is shorter than {SHORTEST_SECRET} characters and cannot be hidden in the output"
        elif name in plan.scrubbed:
            yield f"secrets: {name} is a variable of an outer MPI job or scheduler and is never passed on"
        else:
            yield from _written_out(plan, name, value)


def _written_out(plan: Plan, name: str, value: str) -> Iterator[str]:
    places = {
        "command": plan.command,
        "env": tuple(plan.rank_environment.values()),
        "backend.extra_args": plan.extra_args,
        "workdir": (plan.workdir,),
        "grab": tuple(plan.environment.get(key, "") for key in ("HVDGRAB_GRAB",)),
        "the job directory's name": (plan.job_dir,),
    }
    for place, texts in places.items():
        if any(value in text for text in texts):
            yield f"secrets: the value of {name} stands in {place}, where others can read it; let the program read ${name} itself"


def _places(plan: Plan, inherited: Mapping[str, str]) -> Iterator[str]:
    if not Path(plan.workdir).is_dir():
        yield f"workdir: {plan.workdir} is not a directory"
        return
    merged = {**inherited, **plan.environment, **plan.rank_environment}
    environment = {os.fsencode(name): os.fsencode(value) for name, value in merged.items() if name == "PATH"}
    if find_program(os.fsencode(plan.command[0]), environment, plan.workdir) is None:
        yield f"command: {plan.command[0]!r} is not an executable program on PATH or in {plan.workdir}"

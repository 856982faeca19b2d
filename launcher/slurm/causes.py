"""Why SLURM ends a job: one table of its ways to do so, and what shows each of them.

Three things tell: the job's state, in squeue, sacct and scontrol alike; further fields of ``scontrol show job``; and the line
that SLURM's daemon on a node writes into a log just before it signals the job, which needs no answer of the controller.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.host.program import Answer
from launcher.jobdir import words
from launcher.jobdir.stop import Stop
from launcher.slurm.commands import seconds
from launcher.slurm.states import STATES, State

LOG_MOST = 1 << 20
"""Bytes of a log that are read."""
BY = "SLURM"
"""Who asks an attempt to stop, in ``stop.json``."""
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9/:_]*)=(\S*)")


@dataclass(frozen=True)
class Ending:
    """One way in which SLURM ends a job."""

    cause: str
    """One of `launcher.jobdir.words.END_CAUSES`."""
    of_job: str
    """The reason, for a job that the launcher has submitted."""
    of_allocation: str
    """The same, behind the words "SLURM's allocation 7, in which the job runs,"."""
    states: tuple[str, ...] = ()
    """Final states that show it."""
    logged: str | None = None
    """How the text behind ``DUE TO`` begins in the line of slurmstepd (``_handle_terminate`` and the like in its req.c)."""


CANCELLED = Ending(
    words.CANCELLED, "cancelled in SLURM, by scancel or an administrator", "was given back or cancelled", ("CANCELLED",)
)
PREEMPTED = Ending(
    words.PREEMPTION, "SLURM preempted the job for one of higher priority", "was preempted", ("PREEMPTED",), "PREEMPTION"
)
REQUEUED = Ending(
    words.PREEMPTION, "SLURM put the job back into its queue, because it was preempted or because somebody asked for it",
    "was put back into the queue", (), "JOB REQUEUE",
)  # fmt: skip
TIMED_OUT = Ending(
    words.TIME_LIMIT, "the job reached SLURM's time limit", "reached its time limit", ("TIMEOUT", "DEADLINE"), "TIME LIMIT"
)
NODE_LOST = Ending(
    words.LOST_NODE, "SLURM lost a node of the job", "lost a node",
    ("NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"), "NODE FAILURE",
)  # fmt: skip
OUT_OF_MEMORY = Ending(
    words.FAILURE, "the job was ended because it used more memory than it had asked for",
    "was ended because it used more memory than it had asked for", ("OUT_OF_MEMORY",),
)  # fmt: skip
FORGOTTEN = Ending(words.CANCELLED, "SLURM does not know the job any more", "has ended some time ago")
ENDINGS = (CANCELLED, PREEMPTED, REQUEUED, TIMED_OUT, NODE_LOST, OUT_OF_MEMORY)
_BY_STATE = {state: ending for ending in ENDINGS for state in ending.states}


def cause_of(state: State) -> str | None:
    """What ended a job in this state; None if it is not over, or only the job itself can tell."""
    ending = _BY_STATE.get(state.name)
    return ending.cause if ending is not None else words.FAILURE if state.name == "FAILED" else None


def why(job_id: str, log: str, ask: Callable[[], Answer], restarts: int) -> Stop | None:
    """Why SLURM ends a job that the launcher has submitted; None if SLURM does not end it, or does not say.

    Args:
        job_id: SLURM's id.
        log: what the job's own log holds.
        ask: asks ``scontrol --oneliner show job``; called only if the log does not tell.
        restarts: how often SLURM had put the job back when this run of it began.
    """
    ending = logged(log, job_id) or answered(ask(), restarts)
    return Stop(ending.cause, BY, ending.of_job) if ending is not None else None


def why_over(job_id: str, log: str, ask: Callable[[], Answer]) -> Ending | None:
    """Why an allocation that somebody else has made is over; None if it is held, or nobody says.

    Args:
        job_id: SLURM's id of the allocation.
        log: what srun has printed.
        ask: as for `why`.
    """
    return logged(log, job_id, of_step=True) or answered(ask(), None)


def logged(log: str, job_id: str, *, of_step: bool = False) -> Ending | None:
    """What the last line of slurmstepd about a job says; None if there is none that is understood.

    Args:
        log: text that may hold such lines.
        job_id: SLURM's id.
        of_step: whether lines about a step of the job count as well; a step that was only cancelled does not end the job.
    """
    what = r"(?:JOB|STEP)" if of_step else "JOB"
    found = re.findall(rf"\*\*\* {what} {job_id}(?:\.\d+)? ON \S+ CANCELLED AT \S+?(?: DUE TO ([^*]*?))? \*\*\*", log)
    said = [text for text in found if text or not of_step][-1:]
    if said == [""]:
        return CANCELLED
    return next((one for one in ENDINGS for text in said if one.logged and text.startswith(one.logged)), None)


def read_log(path: Path, begin: int = 0) -> str:
    """What a log holds from byte ``begin`` on, of it the last MiB; '' if it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - LOG_MOST))
        return file.read(LOG_MOST).decode("utf-8", "replace")
    return ""


def answered(answer: Answer, restarts: int | None) -> Ending | None:
    """What ``scontrol --oneliner show job ID`` says of the end of a job; None if there is no end, or no answer.

    Args:
        answer: of scontrol.
        restarts: how often SLURM had put the job back when this run of it began; None for an allocation of somebody else, which
            is over however its job ends.
    """
    held = restarts is None
    if held and "invalid job id" in answer.stderr.lower():
        return FORGOTTEN
    fields = parse_job(answer) or {}
    state = STATES.get(fields.get("JobState", ""))
    if state is None or (held and state.phase not in ("ending", "over")):
        return None
    preempted = fields.get("PreemptTime", "None") not in ("None", "", "Unknown", "N/A")
    if preempted and (held or state.name != "CANCELLED"):  # salloc gives a preempted allocation back by itself
        return PREEMPTED
    if state.name in _BY_STATE:
        return _BY_STATE[state.name]
    if restarts is not None and (_is_back(state) or _restarts(fields) > restarts):
        return REQUEUED
    if held or state.name == "COMPLETING":  # SLURM ends the processes of the job, and hides why
        return TIMED_OUT if _used_up(fields) else CANCELLED
    return None


def _is_back(state: State) -> bool:
    return state.phase == "waiting" and state.name != "CONFIGURING"


def _restarts(fields: Mapping[str, str]) -> int:
    number = fields.get("Restarts", "")
    return int(number) if number.isdigit() else 0


def _used_up(fields: Mapping[str, str]) -> bool:
    used, limit = seconds(fields.get("RunTime", "")), seconds(fields.get("TimeLimit", ""))
    return used is not None and limit is not None and used >= limit


def parse_job(answer: Answer) -> dict[str, str] | None:
    """The fields of ``scontrol --oneliner show job ID`` that hold no spaces; None if that gave no answer."""
    if not answer.ok or "JobState=" not in answer.stdout:
        return None
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(answer.stdout):
        fields.setdefault(name, value)
    return fields


def killed_by(answer: Answer) -> str | None:
    """The signal that ended a batch script, such as ``SIGKILL``; None if none did, or scontrol did not answer.

    Source: ``scontrol(1)``: ExitCode is the exit code of the batch script, a colon, and the signal that ended it.
    """
    number = (parse_job(answer) or {}).get("ExitCode", "").partition(":")[2]
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return None

"""What SLURM says about one job in full: ``scontrol show job``, and what follows for an attempt that was told to stop."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from launcher.host.program import Answer
from launcher.jobdir import words
from launcher.jobdir.stop import Stop
from launcher.slurm.states import STATES

BY = "SLURM"
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z0-9/:_]*)=(\S*)")


def parse_job(answer: Answer) -> dict[str, str] | None:
    """The fields of ``scontrol --oneliner show job ID`` that hold no spaces; None where it gave no answer."""
    if not answer.ok or "JobState=" not in answer.stdout:
        return None
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(answer.stdout):
        fields.setdefault(name, value)
    return fields


def killed_by(fields: Mapping[str, str] | None) -> str | None:
    """The signal that ended what SLURM ran for a job, such as ``SIGKILL``; None where none did, or where that is not known.

    Source: ``scontrol(1)``: ExitCode is the exit code of the batch script, a colon, and the signal that ended it.
    """
    number = (fields or {}).get("ExitCode", "").partition(":")[2]
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return None


def forgotten(answer: Answer) -> bool:
    """Whether SLURM has answered that it does not know the job."""
    return "invalid job id" in answer.stderr.lower()


def said_in_log(text: str, job_id: str) -> Stop | None:
    """Why SLURM ends a job, from the line that its daemon on the node writes into the job's own log just before the signal.

    It needs no answer of the controller.  Source: ``slurmstepd``, ``_handle_terminate`` and the like in ``req.c``.
    """
    found = re.findall(rf"\*\*\* JOB {job_id} ON \S+ (CANCELLED AT [^*]*?) \*\*\*", text)
    if not found:
        return None
    cause = found[-1].partition(" DUE TO ")[2]
    if not cause:
        return _CANCELLED
    return next((request for beginning, request in _LOGGED.items() if cause.startswith(beginning)), None)


_CANCELLED = Stop(words.CANCELLED, BY, "cancelled in SLURM, by scancel or an administrator")
_BACK = "SLURM put the job back into its queue, because it was preempted or because somebody asked for it"
_LOGGED = {
    "PREEMPTION": Stop(words.PREEMPTION, BY, "SLURM preempted the job for one of higher priority"),
    "JOB REQUEUE": Stop(words.PREEMPTION, BY, _BACK),
    "TIME LIMIT": Stop(words.TIME_LIMIT, BY, "the job reached SLURM's time limit"),
    "NODE FAILURE": Stop(words.LOST_NODE, BY, "SLURM lost a node of the job"),
}


def why_stopped(fields: Mapping[str, str] | None, restarts: int) -> Stop | None:
    """Why SLURM ends a job; None where that cannot be known, or where it was not SLURM.

    Args:
        fields: as `parse_job` gives them.
        restarts: how often SLURM had put the job back when this run of it began.
    """
    if fields is None:
        return None
    state = fields.get("JobState", "")
    preempted = fields.get("PreemptTime", "None") not in ("None", "", "Unknown", "N/A")
    if state == "CANCELLED":
        return _CANCELLED
    if preempted or state == "PREEMPTED":
        return _LOGGED["PREEMPTION"]
    if state in ("TIMEOUT", "DEADLINE"):
        return _LOGGED["TIME LIMIT"]
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return _LOGGED["NODE FAILURE"]
    again = fields.get("Restarts", "")
    back = state in STATES and STATES[state].phase == "waiting" and state != "CONFIGURING"
    if back or (again.isdigit() and int(again) > restarts):
        return _LOGGED["JOB REQUEUE"]
    if state == "COMPLETING":  # SLURM ends it, and hides the rest; what is put back has one restart more
        return _CANCELLED
    if state == "OUT_OF_MEMORY":
        return Stop(words.FAILURE, BY, f"the job {STATES[state].words}")
    return None

"""What SLURM says about one job in full: ``scontrol show job``, and what follows for an attempt that was told to stop."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher import stop
from launcher.slurm.commands import Answer
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


def forgotten(answer: Answer) -> bool:
    """Whether SLURM has answered that it does not know the job."""
    return "invalid job id" in answer.stderr.lower()


def why_stopped(fields: Mapping[str, str] | None, restarts: int) -> stop.Stop | None:
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
        return stop.Stop(stop.CANCELLED, BY, "cancelled in SLURM, by scancel or an administrator")
    if preempted or state == "PREEMPTED":
        return stop.Stop(stop.PREEMPTION, BY, "SLURM preempted the job for one of higher priority")
    if state in ("TIMEOUT", "DEADLINE"):
        return stop.Stop(stop.TIME_LIMIT, BY, f"the job {STATES[state].words}")
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return stop.Stop(stop.LOST_NODE, BY, "SLURM lost a node of the job")
    again = fields.get("Restarts", "")
    back = state in STATES and STATES[state].phase == "waiting" and state != "CONFIGURING"
    if back or (again.isdigit() and int(again) > restarts):
        return stop.Stop(stop.PREEMPTION, BY, "the job was put back into SLURM's queue")
    if state == "OUT_OF_MEMORY":
        return stop.Stop(stop.FAILURE, BY, f"the job {STATES[state].words}")
    return None

"""All states of SLURM's jobs and what they mean here, and its reasons for waiting in words.

Sources: ``slurm.h`` of 22.05 to 24.11 (``enum job_states`` and the state flags), ``squeue(1)`` under JOB STATE CODES and
JOB REASON CODES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Phase = Literal["waiting", "running", "ending", "over"]


@dataclass(frozen=True)
class State:
    """One state of SLURM."""

    name: str
    phase: Phase
    """waiting: not started, or put back; running: on its nodes; ending: its processes are being ended; over: for good."""
    words: str


_STATES = (
    State("PENDING", "waiting", "waits in the queue"),
    State("CONFIGURING", "waiting", "its nodes are being made ready"),
    State("POWER_UP_NODE", "waiting", "its nodes are being powered up"),
    State("REQUEUED", "waiting", "was put back into the queue"),
    State("REQUEUE_FED", "waiting", "was put back into the queue of a federation"),
    State("REQUEUE_HOLD", "waiting", "was put back into the queue and is held"),
    State("SPECIAL_EXIT", "waiting", "was put back into the queue, held, because of its exit code"),
    State("RESV_DEL_HOLD", "waiting", "is held, because its reservation was deleted"),
    State("RUNNING", "running", "runs"),
    State("SUSPENDED", "running", "is suspended"),
    State("STOPPED", "running", "was stopped by a signal"),
    State("RESIZING", "running", "its allocation changes its size"),
    State("SIGNALING", "running", "is being signalled"),
    State("EXPEDITING", "waiting", "was put back into the queue with preference"),
    State("COMPLETING", "ending", "its processes are being ended"),
    State("STAGE_OUT", "ending", "its files are being copied out of a burst buffer"),
    State("UPDATE_DB", "ending", "its end is being recorded"),
    State("COMPLETED", "over", "has ended"),
    State("FAILED", "over", "ended with an error"),
    State("CANCELLED", "over", "was cancelled in SLURM"),
    State("TIMEOUT", "over", "reached SLURM's time limit"),
    State("DEADLINE", "over", "could not end before its deadline"),
    State("PREEMPTED", "over", "was preempted"),
    State("NODE_FAIL", "over", "lost a node"),
    State("BOOT_FAIL", "over", "did not start, because a node did not boot"),
    State("LAUNCH_FAILED", "over", "could not be launched on its nodes"),
    State("RECONFIG_FAIL", "over", "did not start, because a node could not be configured"),
    State("OUT_OF_MEMORY", "over", "was ended because it used more memory than it had asked for"),
    State("REVOKED", "over", "is run by another cluster of the federation"),
)
STATES = {state.name: state for state in _STATES}

_SHORT = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING", "DL": "DEADLINE",
    "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED", "R": "RUNNING",
    "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED",
    "SI": "SIGNALING", "SE": "SPECIAL_EXIT", "SO": "STAGE_OUT", "ST": "STOPPED", "S": "SUSPENDED", "TO": "TIMEOUT",
}  # fmt: skip


def parse_state(text: str) -> State | None:
    """The state in what SLURM's programs say: ``RUNNING``, ``R``, ``CANCELLED by 1000``, ``CANCELLED+``; None if unknown."""
    word = re.match(r"[A-Z_]+", text.strip())
    if word is None:
        return None
    name = word.group(0)
    return STATES.get(_SHORT.get(name, name))


NEVER = "it will never start as it is"

_REASONS: tuple[tuple[str, str], ...] = (
    (r"None|Priority", "others come first"),
    (r"Resources", "waits until enough is free"),
    (r"BeginTime", "waits for its start time"),
    (r"DependencyNeverSatisfied", f"depends on a job that ended otherwise than asked: {NEVER}; cancel it"),
    (r"Dependency", "waits for a job on which it depends"),
    (r"JobHeldAdmin", "is held by an administrator; ask them to release it"),
    (r"JobHeldUser", "is held; `scontrol release JOBID` lets it go"),
    (r"PartitionNodeLimit", "asks for more nodes than its partition has or allows: ask for fewer, or for another partition"),
    (r"PartitionTimeLimit", "asks for more time than its partition allows: shorten resources.time_limit, or use another one"),
    (r"PartitionDown|PartitionInactive", "its partition takes no jobs to run at present"),
    (r"PartitionConfig", "asks for more nodes or cores than its partition has: ask for fewer, or for another partition"),
    (r"BadConstraints", f"asks for a constraint that no node fulfils: {NEVER}"),
    (r"ReqNodeNotAvail.*", "needs nodes that are down, drained or reserved"),
    (r"Nodes_required_for_job_are_DOWN.*", "needs nodes that are down, drained or reserved"),
    (r"NodeDown", "needs a node that is down"),
    (r"Reservation(Deleted)?", "waits for its reservation"),
    (r"Licenses", "waits for licences"),
    (r"Cleaning", "is being cleaned up after its last run"),
    (r"launch_failed_requeued_held", "could not be launched on its nodes and is held; `scontrol release JOBID` frees it"),
    (r"JobHoldMaxRequeue", "was put back too often and is held; `scontrol release JOBID` frees it"),
    (r"(InvalidAccount|InvalidQOS)", f"its account or QOS is not valid: {NEVER}"),
    (r"(Assoc|QOS)Max\w*PerJob\w*|QOS(Time|Resource)Limit", f"asks for more than its account or QOS allows a job: {NEVER}"),
    (r"(Assoc|QOS)\w+", "its account or QOS has reached a limit"),
    (r"ArrayTaskThrottle|JobArrayTaskLimit", "waits for other tasks of its array"),
    (r"NonZeroExitCode|RaisedSignal.*|TimeLimit|FailedJob\w*|SystemFailure|OutOfMemory", "see its state"),
)


def reason_in_words(reason: str) -> str:
    """What squeue gives as the reason for waiting, in words; the reason itself if it has none."""
    text = reason.strip().strip("()").replace(" ", "_")
    for pattern, words in _REASONS:
        if re.fullmatch(pattern, text):
            return words
    return f"SLURM's reason: {reason.strip() or 'none given'}"


HALTED = (STATES["SUSPENDED"], STATES["STOPPED"])
"""States of jobs that have their nodes and make no progress."""


def detail(state: State, partition: str, reason: str) -> str:
    """One line for people about a job that is not over."""
    if state.phase != "waiting":
        return f"in partition {partition}: {state.words}"
    return f"pending in partition {partition}: {reason_in_words(reason)} ({reason.strip().strip('()') or 'no reason'})"

"""Whether an allocation that somebody else has made is still held, and why it has ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher.host.program import Answer
from launcher.jobdir import words
from launcher.jobdir.stop import Stop
from launcher.slurm.commands import Reach
from launcher.slurm.job_info import BY, forgotten, parse_job
from launcher.slurm.site import seconds
from launcher.slurm.states import STATES

ASK_SECONDS = 5.0
Ask = Callable[[Sequence[str]], Answer]


def asker(environment: Mapping[str, str]) -> Ask:
    """Asks the cluster that an allocation belongs to."""
    away = "SLURM_WORKING_CLUSTER" in environment  # set by `salloc -M`, for another cluster than that of this host
    reach = Reach.of(environment, environment.get("SLURM_CLUSTER_NAME") if away else None)
    return lambda argv: reach.ask(argv, timeout=ASK_SECONDS)


def why_over(job_id: str, ask: Ask) -> Stop | None:
    """Why an allocation is over; None where it is held, or SLURM does not answer."""
    answer = ask(("scontrol", "--oneliner", "show", "job", job_id))
    if forgotten(answer):
        return _stop(words.CANCELLED, job_id, "has ended some time ago")
    fields = parse_job(answer)
    state = STATES.get((fields or {}).get("JobState", ""))
    if fields is None or state is None or state.phase not in ("ending", "over"):
        return None
    if fields.get("PreemptTime", "None") not in ("None", "", "Unknown", "N/A"):
        return _stop(words.PREEMPTION, job_id, "was preempted")
    if state.cause == words.TIME_LIMIT or _used_up(fields):
        return _stop(words.TIME_LIMIT, job_id, "reached its time limit")
    if state.cause in (words.LOST_NODE, words.PREEMPTION):
        return _stop(state.cause, job_id, state.words)
    return _stop(words.CANCELLED, job_id, "was given back or cancelled")


def _stop(cause: str, job_id: str, words: str) -> Stop:
    return Stop(cause, BY, f"SLURM's allocation {job_id}, in which the job runs, {words}")


def _used_up(fields: Mapping[str, str]) -> bool:
    """While its processes are being ended, SLURM hides why."""
    used, limit = seconds(fields.get("RunTime", "")), seconds(fields.get("TimeLimit", ""))
    return used is not None and limit is not None and used >= limit


def said_of_step(log: Path, job_id: str) -> Stop | None:
    """What the nodes' own daemons said of the allocation's end, in the output of srun: it needs no answer of the controller."""
    try:
        text = log.read_text("utf-8", "replace")
    except OSError:
        return None
    found = re.findall(rf"\*\*\* (?:JOB|STEP) {job_id}(?:\.\d+)? ON \S+ CANCELLED AT \S+ DUE TO ([A-Z ]+)", text)
    causes = {"TIME LIMIT": (words.TIME_LIMIT, "reached its time limit"), "PREEMPTION": (words.PREEMPTION, "was preempted"),
              "NODE FAILURE": (words.LOST_NODE, "lost a node")}  # fmt: skip
    known = causes.get(found[-1].strip()) if found else None
    return _stop(known[0], job_id, known[1]) if known else None

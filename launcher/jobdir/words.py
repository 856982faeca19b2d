"""The words for a job's state and for the cause of an end, each written here alone."""

from __future__ import annotations

from typing import Literal, get_args

State = Literal["queued", "starting", "running", "restarting", "succeeded", "failed", "cancelled", "unknown"]
STATES: tuple[str, ...] = get_args(State)
QUEUED, STARTING, RUNNING, RESTARTING, SUCCEEDED, FAILED, CANCELLED, UNKNOWN = STATES
FINAL = (SUCCEEDED, FAILED, CANCELLED)
WAITING = (QUEUED, RESTARTING)
"""No attempt is under way: the job waits for its turn, or for the end of a back-off."""
LIVE = (STARTING, RUNNING)
"""An attempt runs."""
UNDER_WAY = (*LIVE, UNKNOWN)
"""An attempt was begun, and its end is not known."""

FINISHED, FAILURE, HANG, LOST_NODE = "finished", "failure", "hang", "lost_node"
PREEMPTION, TIME_LIMIT, NOT_STARTED = "preemption", "time_limit", "not_started"
STOP_CAUSES = (CANCELLED, PREEMPTION, TIME_LIMIT, HANG, LOST_NODE, FAILURE, NOT_STARTED)
"""Why an attempt may be asked to stop: ``cause`` in ``stop.json``."""
END_CAUSES = (FINISHED, *STOP_CAUSES)
"""Why an attempt ended: ``cause`` in ``end.json``."""
GENTLE_CAUSES = (PREEMPTION, TIME_LIMIT)
"""Causes for which the training is given time to save its state."""
STARTER_GONE, SUPERVISOR_GONE, SUPERSEDED = "starter_gone", "supervisor_gone", "superseded"
"""Further causes for which a rank's wrapper stops its program by itself: the process that started the rank has gone, the
attempt's supervisor has gone, or a later attempt of the job runs."""

"""What follows the end of an attempt: the job's end, or another attempt and when.

`decide` knows nothing but the job's restart settings, how its attempts ended, and the time.  The daemon, ``--foreground`` and
jobs that put themselves back into SLURM's queue ask it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from launcher.host.text import counted
from launcher.jobdir.plan import RestartRules
from launcher.jobdir.words import (
    CANCELLED,
    FAILED,
    FAILURE,
    HANG,
    LOST_NODE,
    NOT_STARTED,
    PREEMPTION,
    SUCCEEDED,
    TIME_LIMIT,
)

if TYPE_CHECKING:
    from launcher.jobdir.end import AttemptEnd

UNLIMITED = "unlimited"
_WORDS = {
    FAILURE: "failed",
    HANG: "hung",
    LOST_NODE: "lost a node",
    PREEMPTION: "was preempted",
    TIME_LIMIT: "reached its time limit",
}
_OUTSIDE = (PREEMPTION, LOST_NODE)
"""Causes that say nothing about the training: they do not count for the verdict that it makes no progress."""


@dataclass(frozen=True)
class Final:
    """The job has ended."""

    state: str
    """succeeded, failed or cancelled."""
    exit_code: int
    reason: str | None


@dataclass(frozen=True)
class Restart:
    """Another attempt is due."""

    at: float
    """Unix time, seconds."""
    excluded_hosts: tuple[str, ...]
    """Hosts to do without."""
    reason: str


Verdict = Final | Restart


def decide(rules: RestartRules, ends: Sequence[AttemptEnd], now: float, random: Random | None = None) -> Verdict:
    """The verdict after the last of a job's attempts: the only place that says whether and when another one follows.

    Args:
        rules: the plan's resolved ``restart`` settings.
        ends: how all attempts ended, oldest first; at least one.
        now: Unix time, seconds.
        random: source of the jitter.
    """
    if (over := final(rules, ends)) is not None:
        return over
    last = ends[-1]
    at = now + backoff(rules, ends, random or Random())
    reason = f"attempt {last.attempt} {_WORDS[budget_of(last)]} ({last.reason or 'no reason known'}); the next one follows"
    return Restart(at, excluded(rules, ends, at), reason)


def final(rules: RestartRules, ends: Sequence[AttemptEnd]) -> Final | None:
    """The job's end, if no other attempt is due after these, oldest first; at least one."""
    last = ends[-1]
    if last.state in (SUCCEEDED, CANCELLED):
        return Final(last.state, last.exit_code, last.reason)
    against = _against_another(rules, ends)
    return None if against is None else Final(FAILED, last.exit_code, against)


def budget_of(end: AttemptEnd) -> str:
    """The setting that says how often such an end may be followed by another attempt."""
    if end.cause == NOT_STARTED:
        return LOST_NODE if end.bad_hosts else FAILURE
    return end.cause if end.cause in _WORDS else FAILURE


def _against_another(rules: RestartRules, ends: Sequence[AttemptEnd]) -> str | None:
    """Why no other attempt is made; None if one is."""
    last = ends[-1]
    cause = budget_of(last)
    why = last.reason or f"attempt {last.attempt} {_WORDS[cause]}"
    if cause == FAILURE and last.exit_code in rules.permanent_exit_codes:
        return f"{why}; code {last.exit_code} is in restart.permanent_exit_codes, so no other attempt is made"
    budget = getattr(rules, cause)
    spent = sum(budget_of(end) == cause for end in ends)
    if budget != UNLIMITED and spent > budget:
        allowed = f"restart.{cause} allows {counted(budget, 'restart')}"
        return why if budget == 0 else f"{why}; it {_WORDS[cause]} {spent} times, and {allowed}"
    standing = _without_progress(ends)
    most = rules.no_progress
    if isinstance(most, int) and 0 < most <= standing:
        return f"{why}; {standing} attempts in a row made no progress, as another would (restart.no_progress: {most})"
    return None


def _without_progress(ends: Sequence[AttemptEnd]) -> int:
    """Attempts in a row, to the last, that ended by the training's own doing without progress."""
    count = 0
    for end in reversed(ends):
        if end.progressed:
            break
        count += budget_of(end) not in _OUTSIDE
    return count


def backoff(rules: RestartRules, ends: Sequence[AttemptEnd], random: Random) -> float:
    """Seconds to wait: growing with every end of the same cause in a row, from the start again once there was progress."""
    cause = budget_of(ends[-1])
    in_a_row = 0
    for end in reversed(ends):
        if budget_of(end) != cause:
            break
        in_a_row += 1
        if end.progressed:
            break
    growth = min(in_a_row - 1, 64)  # a float holds any factor of sane size to this power
    delay = min(rules.backoff_most, rules.backoff * rules.backoff_factor ** growth)
    return max(0.0, delay * (1.0 + rules.jitter * random.uniform(-1.0, 1.0)))


def excluded(rules: RestartRules, ends: Sequence[AttemptEnd], at: float) -> tuple[str, ...]:
    """Hosts to do without at a time: those that were lost, or on which an attempt failed at once, not long ago."""
    hosts: set[str] = set()
    for end in ends:
        fast = end.seconds < rules.fast_failure and not end.progressed
        to_blame = budget_of(end) == LOST_NODE or (fast and budget_of(end) in (FAILURE, HANG))
        if to_blame and at < end.ended + rules.exclude_node_for:
            hosts.update(end.bad_hosts)
    return tuple(sorted(hosts))

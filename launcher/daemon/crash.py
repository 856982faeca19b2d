"""The places at which a test can end the daemon as a power failure would: ``HVDGRAB_CRASH_AT=name[:n]``, at the n-th passage."""

from __future__ import annotations

import os
import signal

from launcher.jobdir.variables import CRASH_AT

STEPS = (
    "submit-environment-kept",
    "submit-recorded",
    "submit-noted",
    "cancel-marked",
    "cancel-recorded",
    "start-recorded",
    "start-planned",
    "start-spawned",
    "start-confirmed",
    "end-seen",
    "end-recorded",
    "close-noted",
    "close-forgotten",
    "spool-taken",
    "spool-written",
    "spool-submitted",
)
"""All places, in the order of a job's life."""
_passed: dict[str, int] = {}


def step(name: str) -> None:
    """Pass a place.  Costs nothing where no crash is wished for."""
    wanted = os.environ.get(CRASH_AT)
    if wanted is None:
        return
    place, _, count = wanted.partition(":")
    _passed[name] = _passed.get(name, 0) + 1
    if place == name and _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)

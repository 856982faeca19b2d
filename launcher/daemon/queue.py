"""What this host gives to jobs, which of the waiting ones start now, and why the others do not.

The daemon's own settings stand in ``daemon.yaml`` in the state directory; environment variables override them:

========================  ===============  =================================================
variable                  key              meaning
========================  ===============  =================================================
``HVDGRAB_MAX_RUNNING``   ``max_running``  jobs at the same time; by default any number
``HVDGRAB_CPUS``          ``cpus``         CPU slots; by default the cores of this host
``HVDGRAB_GPUS``          ``gpus``         number of GPUs; by default those of this host
========================  ===============  =================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from launcher.daemon.record import Job
from launcher.errors import LauncherError
from launcher.host.text import counted
from launcher.jobdir.variables import PREFIX
from launcher.jobdir.words import FINAL, SUCCEEDED


@dataclass(frozen=True)
class Capacity:
    """What this host gives to jobs at the same time."""

    cpus: int
    gpus: tuple[str, ...] = ()
    """Ids of the GPUs, as CUDA_VISIBLE_DEVICES takes them."""
    max_running: int | None = None
    """Jobs at the same time, on this host or through a scheduler; None for any number."""


@dataclass
class Picked:
    """What `pick_jobs_to_start` found."""

    starts: list[tuple[Job, tuple[str, ...]]] = field(default_factory=list)
    """Jobs to start now, in this order, each with its GPUs."""
    never: dict[str, str] = field(default_factory=dict)
    """Jobs that can never start, with the reason."""
    reasons: dict[str, str] = field(default_factory=dict)
    """What each of the others waits for."""


def pick_jobs_to_start(waiting: Sequence[Job], under_way: Sequence[Job], states: Mapping[str, str], capacity: Capacity) -> Picked:
    """Decide.

    The order is by priority, then by submission, and it is kept: a job that does not fit holds back those behind it that need
    slots of this host as well, so that no large job waits for ever while small ones pass it.

    Args:
        waiting: jobs whose time has come.
        under_way: jobs that have slots.
        states: the states of all jobs that the waiting ones depend on.
        capacity: what this host gives.
    """
    picked = Picked()
    free = _Free(under_way, capacity)
    for job in sorted(waiting, key=lambda job: (-job.priority, job.seq)):
        unmet = _unmet(job, states)
        if unmet is not None:
            verdict, text = unmet
            (picked.never if verdict == "never" else picked.reasons)[job.id] = text
            continue
        obstacle = free.obstacle(job)
        if obstacle is None:
            picked.starts.append((job, free.take(job)))
        else:
            picked.reasons[job.id] = obstacle
    return picked


def _unmet(job: Job, states: Mapping[str, str]) -> tuple[str, str] | None:
    waits = []
    for other in job.depends_on:
        state = states.get(other)
        if state is None:
            return "never", f"it depends on {other}, which is not in the record"
        if state in FINAL and state != SUCCEEDED:
            return "never", f"it depends on {other}, which {'was cancelled' if state == 'cancelled' else 'failed'}"
        if state != SUCCEEDED:
            waits.append(other)
    return ("later", f"waits for {', '.join(waits)}") if waits else None


class _Free:
    """What is left of a capacity."""

    def __init__(self, under_way: Sequence[Job], capacity: Capacity) -> None:
        self._capacity = capacity
        self._running = len(under_way)
        self._cpus = capacity.cpus - sum(min(job.cpus, capacity.cpus) for job in under_way)
        taken = {gpu for job in under_way for gpu in job.gpu_ids}
        self._gpus = [gpu for gpu in capacity.gpus if gpu not in taken]
        self._held_by: str | None = None

    def obstacle(self, job: Job) -> str | None:
        """Why a job cannot start now; None if it can."""
        most = self._capacity.max_running
        if most is not None and self._running >= most:
            return f"waits for its turn: {self._running} jobs are under way, and max_running is {most}"
        if job.cpus == 0 and job.gpus == 0:
            return None
        if self._held_by is not None:
            return f"waits for its turn behind {self._held_by}"
        obstacle = self._lack(job)
        if obstacle is not None and job.gpus <= len(self._capacity.gpus):
            self._held_by = job.id
        return obstacle

    def _lack(self, job: Job) -> str | None:
        total = len(self._capacity.gpus)
        if job.gpus > total:
            return f"needs {job.gpus} GPUs; this host has {total}: it waits until the daemon is started where there are more"
        if job.gpus > len(self._gpus):
            return f"waits for {counted(job.gpus, 'GPU')}; {len(self._gpus)} of {total} are free"
        needed = min(job.cpus, self._capacity.cpus)
        if needed > self._cpus:
            return f"waits for {counted(needed, 'CPU slot')}; {max(0, self._cpus)} of {self._capacity.cpus} are free"
        return None

    def take(self, job: Job) -> tuple[str, ...]:
        """Give a job its slots; returns its GPUs."""
        self._running += 1
        self._cpus -= min(job.cpus, self._capacity.cpus)
        given, self._gpus = self._gpus[: job.gpus], self._gpus[job.gpus :]
        return tuple(given)


KEYS = ("max_running", "cpus", "gpus")
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def load(file: Path, environment: Mapping[str, str]) -> Capacity:
    """What this host gives to jobs.

    Raises:
        LauncherError: naming the file or variable, and what is wrong with it.
    """
    values = {**_from_file(file), **_from_environment(environment)}
    count = values.get("gpus")
    gpus = gpu_ids(environment) if count is None else tuple(str(number) for number in range(count))
    cpus = values.get("cpus")
    return Capacity(len(os.sched_getaffinity(0)) if cpus is None else cpus, gpus, values.get("max_running"))


def gpu_ids(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the GPUs that this process may use."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() and part.strip() != "-1")
    try:
        return tuple(str(number) for number, _ in enumerate(sorted(_NVIDIA.iterdir())))
    except OSError:
        return ()


def _from_file(file: Path) -> dict[str, int | None]:
    try:
        data = yaml.safe_load(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise LauncherError(f"the daemon's settings {file} cannot be read: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise LauncherError(f"the daemon's settings {file} are no mapping; the keys are {', '.join(KEYS)}")
    for key in data:
        if key not in KEYS:
            raise LauncherError(f"{file}: there is no setting {key!r}; there are {', '.join(KEYS)}")
    return {key: None if value is None else _count(value, f"{file}: {key}") for key, value in data.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for key in KEYS:
        text = environment.get(f"{PREFIX}{key.upper()}")
        if text:
            found[key] = _count(int(text) if text.isascii() and text.isdigit() else text, f"{PREFIX}{key.upper()}")
    return found


def _count(value: Any, place: str) -> int:
    least = 0 if place.lower().endswith("gpus") else 1
    if type(value) is not int or value < least:
        raise LauncherError(f"{place}: {value!r} is no whole number from {least} on")
    return value

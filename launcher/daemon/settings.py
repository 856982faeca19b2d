"""The daemon's own settings: ``daemon.yaml`` in the state directory, over which environment variables hold.

========================  ==============  =================================================
variable                  key             meaning
========================  ==============  =================================================
``HVDGRAB_MAX_RUNNING``   ``max_running``  jobs at the same time; by default any number
``HVDGRAB_CPUS``          ``cpus``         CPU slots; by default the cores of this host
``HVDGRAB_GPUS``          ``gpus``         number of GPUs; by default those of this host
========================  ==============  =================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from launcher.daemon.queue import Capacity
from launcher.errors import LauncherError
from launcher.jobdir.variables import PREFIX

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

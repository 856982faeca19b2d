"""What ``variants:`` may hold, and how the jobs that it makes are called."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from launcher.spec.fields import at_key

MAX_VARIANTS = 512
MAX_VALUES = 256
MAX_SETTINGS = 16
SHORT_PATHS = {"order": "grab.order", "seed": "grab.seed"}
"""Settings that may be named without their section."""
NOT_VARIED = ("version", "name", "variants", "group", "depends_on", "priority")


def flatten(value: Any) -> Any:
    """The mapping with sections written out as dotted paths; other values stay as they are, for the model to refuse."""
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    stack = [("", value)]
    while stack:
        prefix, mapping = stack.pop()
        for key, below in mapping.items():
            path = f"{prefix}{key}"
            if isinstance(below, dict) and below:
                stack.append((f"{path}.", below))
            else:
                flat[path] = below
    return flat


def check_variants(value: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The variants by full path, if they make a bounded number of jobs.  Raises ValueError."""
    result: dict[str, list[Any]] = {}
    total = 1
    if len(value) > MAX_SETTINGS:
        raise ValueError(f"{len(value)} settings vary; {MAX_SETTINGS} are the most")
    for key, values in value.items():
        path = SHORT_PATHS.get(key, key)
        _check_path(key, path, result)
        if not 1 <= len(values) <= MAX_VALUES:
            raise at_key(key, f"needs 1 to {MAX_VALUES} values, not {len(values)}")
        if len({repr(one) for one in values}) < len(values):
            raise at_key(key, "a value stands there twice")
        total *= len(values)
        if total > MAX_VARIANTS:
            raise at_key(key, f"with this the variants make more than {MAX_VARIANTS} jobs")
        result[path] = values
    return result


def _check_path(key: str, path: str, known: Mapping[str, Any]) -> None:
    first = path.split(".")[0]
    if first in NOT_VARIED:
        raise at_key(key, f"{first} cannot be varied")
    if path in known:
        raise at_key(key, f"the same setting as {path}, which is given too")


def label(value: Any) -> str:
    """A value as part of a job's name: letters, digits, dots and dashes."""
    text = json.dumps(value) if value is None or isinstance(value, bool | list | dict) else str(value)
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:24] or "x"

"""Steps that remember: each has a key, is skipped while its stamp holds that key and a cheap check agrees, else is done again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RUNNING = "running"
"""The stamp of a step that was begun and not ended: what it left may be half of something."""


@dataclass(frozen=True)
class Step:
    """One step of the set-up.

    Args:
        name: The stamp's name.
        title: What the user reads.
        key: What it was done for; another key means that it is done again.
        check: A cheap look whether the result is there.
        run: Does it. Its argument says whether an earlier try was interrupted, so that leftovers are to be overwritten.
        adopt: Whether a result that is there without any stamp is taken as it is.
    """

    name: str
    title: str
    key: str
    check: Callable[[], bool]
    run: Callable[[bool], None]
    adopt: bool = True


class Stamps:
    """The keys of finished steps, in a JSON file that is replaced in one go. A file that cannot be read counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, str]:
        """All stamps by step name."""
        try:
            raw = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return {str(name): str(key) for name, key in raw.items()} if isinstance(raw, dict) else {}

    def write(self, name: str, key: str) -> None:
        """Record one step."""
        stamps = {**self.read(), name: key}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        fresh.write_text(json.dumps(stamps, indent=2) + "\n")
        fresh.replace(self.path)


def perform(makers: Sequence[Callable[[], Step]], stamps: Stamps, say: Callable[[str], None]) -> list[str]:
    """Go through the steps in order, and return the names of those that had to be done.

    Steps are made one after the other, since what an earlier one installs decides the key of a later one.
    """
    done: list[str] = []
    for number, make in enumerate(makers, 1):
        step = make()
        stamp = stamps.read().get(step.name)
        if holds(step, stamp):
            if stamp is None:
                stamps.write(step.name, step.key)
            continue
        say(f"[{number}/{len(makers)}] {step.title}")
        stamps.write(step.name, RUNNING)
        started = time.monotonic()
        step.run(stamp == RUNNING)
        stamps.write(step.name, step.key)
        say(f"      done in {time.monotonic() - started:.0f} s")
        done.append(step.name)
    return done


def holds(step: Step, stamp: str | None) -> bool:
    """Whether the step's result is there already."""
    if stamp is None:
        return step.adopt and step.check()
    return stamp == step.key and step.check()

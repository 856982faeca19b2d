"""The same training under mpirun, in a batch script and through the launcher: what must be equal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.real import ROOT, mpirun

SECONDS = 900.0
"""After which a training on a busy machine is given up."""
STEADY = {"HOROVOD_FUSION_THRESHOLD": "0"}
"""Horovod adds tensors up together as they happen to be ready, and how it does decides in which order the parts of four ranks are
added.  One by one, two runs of the same training agree to the last bit."""
PLACE = ("step_ms", "ordering_ms", "seconds", "time", "train_seconds", "bytes_sent")
"""Columns that depend on the clock, or on which ranks share a node."""

Line = dict[str, object]


@dataclass(frozen=True)
class Training:
    """What is run: the same wherever it runs."""

    command: tuple[str, ...]
    """Of every rank; begins with ``python``."""
    grab: str
    """``HVDGRAB_GRAB``: JSON."""
    ranks: int
    """With the server, where there is one."""


Reference = Callable[[Training], list[Line]]
"""A training's results under mpirun on this host."""


def results(folder: Path) -> list[Line]:
    """What a job's epochs gave, without what depends on the place."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in PLACE} for line in lines]


def under_mpirun(training: Training, folder: Path) -> list[Line]:
    """Run a training on this host; its results."""
    folder.mkdir()
    variables = {"HVDGRAB_GRAB": training.grab, "HVDGRAB_JOB_DIR": str(folder), "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = mpirun(training.ranks, training.command[1:], SECONDS, variables | STEADY)
    assert done.returncode == 0, done.stdout + done.stderr
    return results(folder)


def settings(script: str) -> str:
    """The ``grab:`` of a batch script."""
    return (ROOT / "slurm" / script).read_text().split("settings='")[1].split("'")[0]


def variants(script: str) -> Sequence[str]:
    """Those of an array, in order."""
    part = (ROOT / "slurm" / script).read_text().split("variants=(")[1].split("\n)")[0]
    return [line.strip().strip("'") for line in part.strip().splitlines()]

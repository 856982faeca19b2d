"""The allocation that this process stands in, from the variables that SLURM sets in every job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.spec.hosts import expand_nodelist

_SPECIAL_STEPS = 4_294_967_000
"""Numbers from here on are the batch script's own step and the like."""


@dataclass(frozen=True)
class Allocation:
    """A job of SLURM that holds nodes."""

    job_id: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...]
    """Tasks for which each node has room, in the order of `nodes`."""
    cpus: tuple[int, ...]
    """Cores held on each node; 0 where SLURM does not say."""
    in_step: bool
    """Whether this process was started by srun: a step inside the step must share its resources."""
    restarts: int
    """How often SLURM has put the job back into its queue and started it again."""

    @property
    def slots(self) -> int:
        """All tasks together."""
        return sum(self.tasks)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Allocation | None:
        """The allocation; None where there is none, or its variables make no sense."""
        job_id = environment.get("SLURM_JOB_ID", "")
        nodelist = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST") or ""
        if not job_id.isdigit() or not nodelist:
            return None
        try:
            nodes = tuple(expand_nodelist(nodelist))
            cpus = expand_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", ""), len(nodes), 0)
            tasks = expand_counts(environment.get("SLURM_TASKS_PER_NODE", ""), len(nodes), 1)
        except ValueError:
            return None
        restarts = environment.get("SLURM_RESTART_COUNT", "")
        step = environment.get("SLURM_STEP_ID", "")
        return cls(
            job_id, nodes, tasks, cpus,
            in_step=step.isdigit() and int(step) < _SPECIAL_STEPS,
            restarts=int(restarts) if restarts.isdigit() else 0,
        )  # fmt: skip


def expand_counts(text: str, count: int, default: int) -> tuple[int, ...]:
    """The numbers in SLURM's short form ``2(x3),1``; ``default`` for every node where the text is empty.

    Raises:
        ValueError: where it is malformed, or does not hold ``count`` numbers.
    """
    if not text:
        return (default,) * count
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,7})(?:\(x(\d{1,7})\))?", part.strip())
        if found is None or int(found.group(2) or 1) > count:
            raise ValueError(f"{text!r} is no list of numbers per node")
        numbers += [int(found.group(1))] * int(found.group(2) or 1)
    if len(numbers) != count:
        raise ValueError(f"{text!r} holds {len(numbers)} numbers for {count} nodes")
    return tuple(numbers)

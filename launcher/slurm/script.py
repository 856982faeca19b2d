"""The batch script of an attempt, as a pure function of its plan.

The script holds no text of the user but the lines of ``slurm.prologue``, which are shell by intention; paths are quoted, and the
job's command is read from the plan by the wrapper around every rank.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Sequence

from launcher.jobdir.plan import Plan, Slurm

SPARE_SECONDS = 90.0
"""How much more time than the job's own limit SLURM is asked for: the job ends by its own clock, with its state saved."""
LOG = "logs/slurm.log"
"""What the batch script itself says, below the job directory."""
_WORD = re.compile(r"[A-Za-z0-9_.,:;@+&|()*/=%^\[\]!-]+")


def token(plan: Plan, attempt: int) -> str:
    """What marks a submission in its comment: job, attempt and a digest of the job directory."""
    digest = hashlib.sha256(plan.job.dir.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"hvdgrab/{plan.job.id}/{attempt}/{digest}"


def submission_name(plan: Plan, attempt: int) -> str:
    """The job's name in SLURM, unique too: sites rewrite comments."""
    return f"{plan.job.id}.{attempt}"


def asked_of(plan: Plan) -> Slurm:
    """What SLURM is asked for by a plan whose backend is slurm or srun."""
    assert plan.slurm is not None
    return plan.slurm


def options(plan: Plan, attempt: int) -> list[str]:
    """The options of sbatch for an attempt, in the order in which the script shows them."""
    slurm = asked_of(plan)
    lines = [f"--job-name={submission_name(plan, attempt)}", f"--comment={token(plan, attempt)}"]
    lines += [f"--output={LOG}", "--open-mode=append", "--requeue" if slurm.requeue else "--no-requeue"]
    lines += _size(plan, slurm)
    if plan.limits.time_limit is not None:
        lines.append(f"--time={minutes(plan.limits.time_limit + SPARE_SECONDS)}")
    for name in ("partition", "account", "qos", "constraint", "reservation", "clusters"):
        if value := getattr(slurm, name):
            lines.append(f"--{name}={value}")
    bad = [*([slurm.exclude] if slurm.exclude else ()), *plan.placement.excluded_hosts]
    if bad:
        lines.append(f"--exclude={','.join(dict.fromkeys(bad))}")
    return [_quoted(line) for line in (*lines, *slurm.extra)]


def _size(plan: Plan, slurm: Slurm) -> list[str]:
    lines = [f"--nodes={slurm.nodes}"] if slurm.nodes else []
    lines.append(f"--ntasks={plan.placement.ranks}")
    if slurm.ranks_per_node or slurm.nodes:
        lines.append(f"--ntasks-per-node={slurm.ranks_per_node or math.ceil(plan.placement.ranks / (slurm.nodes or 1))}")
    lines.append(f"--cpus-per-task={plan.placement.threads_per_rank}")
    if slurm.gpus_per_node:
        lines.append(f"--gpus-per-node={slurm.gpus_per_node}")
    elif plan.placement.gpus_per_rank:
        lines.append(f"--gpus-per-task={plan.placement.gpus_per_rank}")
    if slurm.memory:
        lines.append(f"--mem={math.ceil(slurm.memory / 2**20)}M")
    return lines


def minutes(seconds: float) -> int:
    """SLURM counts whole minutes: rounded up."""
    return max(1, math.ceil(seconds / 60))


def _quoted(option: str) -> str:
    """The option as it stands behind ``#SBATCH``, quoted if sbatch would split it."""
    if _WORD.fullmatch(option):
        return option
    name, equals, value = option.partition("=")
    return f'{name}="{value}"' if equals and re.fullmatch(r"--[a-z-]+", name) else f'"{option}"'


def script(plan: Plan, attempt: int) -> str:
    """The whole batch script of an attempt.

    Args:
        plan: a plan whose backend is slurm.
        attempt: which start of the job this is; if SLURM puts the job back, the script counts on from it.
    """
    lines = ["#!/bin/bash", f"# Attempt {attempt} of job {plan.job.id}, written by hvdgrab-launch."]
    lines += [f"#SBATCH {option}" for option in options(plan, attempt)]
    lines += _prologue(asked_of(plan).prologue)
    root = plan.launch.environment.get("PYTHONPATH")
    if root:
        lines += ["", "# Where the launcher is found; nothing is fetched here.", f"export PYTHONPATH={shlex.quote(root)}"]
    lines += ["", f"exec {shlex.join([plan.launch.python, '-m', 'launcher.slurm.batch', plan.job.dir, str(attempt)])}"]
    return "\n".join(lines) + "\n"


def _prologue(lines: Sequence[str]) -> list[str]:
    """The user's own lines; the first that fails ends the job, and says so."""
    if not lines:
        return []
    modules = any(re.search(r"\b(module|ml)\b", line) for line in lines)
    files = "/etc/profile.d/{lmod,z00_lmod,modules}.sh"
    find = f'type module >/dev/null 2>&1 || for file in {files}; do [ ! -r "$file" ] || . "$file"; done'
    return [
        "",
        "# slurm.prologue",
        *([find] if modules else []),
        "trap 'echo \"hvdgrab-launch: line $LINENO, in slurm.prologue, ended with $?\" >&2' ERR",
        "set -e",
        *lines,
        "set +e",
        "trap - ERR",
    ]

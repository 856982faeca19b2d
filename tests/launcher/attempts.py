"""Attempts run by a real supervisor in a process of its own, without the command line and without a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.host import processes
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.paths import JobPaths, new_id
from launcher.plan import facts
from launcher.plan.planning import make_plan
from tests.launcher.helpers import CHECKOUT, clean_environment, load_text

QUICK = {"HVDGRAB_GRACE_SECONDS": "0.5", "HVDGRAB_HEARTBEAT_SECONDS": "0.2"}
"""Tests do not wait as long as trainings may need."""


def job_of(folder: Path, command: list[str], ranks: int = 2, kind: str = "mpirun", **sections: Any) -> JobPaths:
    """A job directory with the plan of its first attempt."""
    consents = {"oversubscribe": True, "allow_root": True}
    resources = {"ranks": ranks, "threads_per_rank": 1, **consents, **sections.pop("resources", {})}
    backend = {"kind": kind, **sections.pop("backend", {})}
    data = {"command": command, "resources": resources, "backend": backend, **sections}
    spec = load_text(json.dumps(data), "job.yaml", [], default_name="demo")
    job = JobPaths(folder / "jobs" / new_id("demo"))
    job.create()
    make_plan(spec, facts.collect(spec.backend.mpirun), job).place(job)
    return job


def python(code: str, *arguments: str) -> list[str]:
    return ["python", "-c", code, *arguments]


def supervise(job: JobPaths, attempt: int = 1, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.supervise", str(job.root), str(attempt)],
        cwd=CHECKOUT, env=clean_environment({**QUICK, **(env or {})}), stderr=subprocess.PIPE,
    )  # fmt: skip


def end_of(job: JobPaths, process: subprocess.Popen[bytes], attempt: int = 1, timeout: float = 60) -> AttemptEnd:
    """Wait for a supervisor; its end."""
    _, stderr = process.communicate(timeout=timeout)
    assert b"Traceback" not in stderr, stderr
    end = AttemptEnd.read(job.attempt(attempt))
    assert end is not None, stderr
    assert process.returncode == end.exit_code
    return end


def run(job: JobPaths, attempt: int = 1, env: Mapping[str, str] | None = None) -> AttemptEnd:
    return end_of(job, supervise(job, attempt, env), attempt)


def until(condition: Callable[[], object], what: str, seconds: float = 30) -> None:
    pause = threading.Event()
    for _ in range(int(seconds * 20)):
        if condition():
            return
        pause.wait(0.05)
    pytest.fail(f"{what}: not within {seconds:.0f} s")


def with_token(token: str) -> list[int]:
    """Living processes that have a token in their command line or their environment, whatever else they hide."""
    found = []
    for entry in processes.table().values():
        texts = b""
        for name in ("cmdline", "environ"):
            try:
                texts += Path(f"/proc/{entry.pid}/{name}").read_bytes()
            except OSError:
                continue
        if token.encode() in texts and entry.state not in "ZX" and entry.pid != os.getpid():
            found.append(entry.pid)
    return found

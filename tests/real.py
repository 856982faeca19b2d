"""The real parts that tests need; where one is missing CI fails, and a user's machine skips with the reason."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hvdgrab.bench import runs

ROOT = Path(__file__).resolve().parent.parent


def need(part: str, present: bool) -> None:
    """Fail in CI, skip elsewhere, unless ``part`` is there."""
    if not present:
        reason = f"{part} is not installed here (`make setup` installs it)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def find_mpirun() -> str:
    """The mpirun that the benchmarks take; see `need`."""
    need("mpi4py", importlib.util.find_spec("mpi4py") is not None)
    try:
        return runs.mpirun()
    except runs.BenchError:
        need("mpirun", present=False)
        raise


def need_horovod() -> None:
    """Horovod's torch part must be importable; see `need`."""
    need("Horovod", importlib.util.find_spec("horovod") is not None)


def mpirun(
    ranks: int, arguments: Sequence[str], timeout: float, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run this Python with ``arguments`` on ``ranks`` ranks of this machine; kills the job after ``timeout`` seconds."""
    consent = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = [find_mpirun(), *consent, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), sys.executable, *arguments]
    scrubbed = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "PMI_", "HVDGRAB_"))}
    environment = {**scrubbed, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL
    )

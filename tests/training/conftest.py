"""Starting jobs of real ranks for the tests of this folder."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.real import ROOT, find_mpirun, need_horovod

FLAGS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
SCRUBBED = ("HVDGRAB_", "OMPI_", "PMI_", "PMIX_", "MPI_", "HOROVOD_", "SLURM_")
WORLD_SECONDS = 1500
"""All checks of a world together; each has a limit of its own, so that this one only ends what none of them sees."""
STARTS = 3


@dataclass(frozen=True)
class Ended:
    """A job that is over."""

    code: int
    output: str
    timed_out: bool = False


def environment(**extra: str) -> dict[str, str]:
    """The caller's, without what another launcher may have left in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SCRUBBED)}
    paths = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    stall = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "20", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}
    return kept | stall | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"} | extra


def launch(size: int, *arguments: str, timeout: float, **extra: str) -> Ended:
    """Run ``python ARGUMENTS`` on ``size`` ranks (0: in a plain process), wait for it, leave nothing behind."""
    mpirun = [find_mpirun(), *FLAGS, "-np", str(size)] if size else []
    command = [*mpirun, sys.executable, "-X", "faulthandler", *arguments]
    process = subprocess.Popen(
        command, env=environment(**extra), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        stop(process)
        output, _ = process.communicate()
        return Ended(process.returncode, output, timed_out=True)
    finally:
        stop(process)
    return Ended(process.returncode, output)


def stop(process: subprocess.Popen[str]) -> None:
    """End a job that still runs; mpirun passes the signal on to its ranks."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def need_real_ranks() -> None:
    """Skip the test where jobs of real ranks are impossible; fail it if CI is set."""
    find_mpirun()
    need_horovod()


@pytest.fixture(scope="session")
def real_ranks() -> Callable[..., Ended]:
    """Starts jobs of real ranks."""
    need_real_ranks()
    return launch


class Worlds:
    """The results of all checks of a number of ranks; the job runs when the first of them is asked for."""

    def __init__(self, directory: Path, wanted: dict[int, list[str]]) -> None:
        self._directory, self._wanted = directory, wanted
        self._results: dict[int, dict[str, str]] = {}

    def result(self, world: int, name: str) -> str:
        """Empty if the check passed, else what happened."""
        if world:
            need_real_ranks()
        if world not in self._results:
            self._results[world] = self._run(world)
        return self._results[world].get(name, "the check did not run")

    def _run(self, world: int) -> dict[str, str]:
        directory = self._directory / f"world-{world}"
        directory.mkdir()
        (directory / "only.json").write_text(json.dumps(self._wanted[world]))
        results: dict[str, str] = {}
        for _ in range(STARTS):
            (directory / "done.json").write_text(json.dumps(sorted(results)))
            ended = launch(world, "-m", "tests.training.ranks", str(world), str(directory), timeout=WORLD_SECONDS)
            lines = _lines(directory)
            results |= {name: text for name, text in _collate(lines, ended).items() if name not in results}
            if all(any(line["state"] == "finished" for line in rank) for rank in lines):
                if ended.code and results:
                    results[next(reversed(results))] += f"the job ended with {ended.code}:\n{ended.output[-3000:]}"
                break
            if not results:
                return dict.fromkeys(self._wanted[world], f"the job did not start (code {ended.code}):\n{ended.output[-6000:]}")
        return results


def _lines(directory: Path) -> list[list[dict[str, Any]]]:
    files = sorted(directory.glob("rank-*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def _collate(ranks: list[list[dict[str, Any]]], ended: Ended) -> dict[str, str]:
    """A text for every check that was begun, from all ranks' lines; the last line of a check counts."""
    names = {line["check"]: None for rank in ranks for line in rank if line["check"]}
    results = {}
    for name in names:
        last = [next((line for line in reversed(rank) if line["check"] == name), None) for rank in ranks]
        if all(line is not None and line["state"] == "passed" for line in last):
            results[name] = ""
            continue
        texts = [f"rank {rank}: {line['state']}\n{line['text']}" for rank, line in enumerate(last) if line is not None]
        unfinished = any(line is None or line["state"] == "begun" for line in last)
        how = f"was ended here after {WORLD_SECONDS} s" if ended.timed_out else f"ended here with code {ended.code}"
        tail = f"\nthe job {how}:\n{ended.output[-6000:]}" if unfinished else ""
        results[name] = "\n".join(texts) + tail
    return results


@pytest.fixture(scope="session")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    wanted: dict[int, list[str]] = {}
    for item in request.session.items:
        if "worlds" in getattr(item, "fixturenames", ()):
            wanted.setdefault(item.callspec.params["world"], []).append(item.callspec.params["name"])
    return Worlds(tmp_path_factory.mktemp("worlds"), wanted)

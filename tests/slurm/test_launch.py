from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.real import ROOT
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.driver import COUNT, appears

SLOW = 900.0


class User:
    """Somebody who types hvdgrab-launch on a login node, with a record of their own."""

    def __init__(self, cluster: Cluster, folder: Path, host: str = "") -> None:
        self.cluster = cluster
        self._on_host = cluster.on(host) if host else ()
        self.folder = folder
        own = {"HVDGRAB_STATE": str(folder / "state"), "HVDGRAB_RUNTIME": str(folder / "run"), "PYTHONPATH": str(ROOT)}
        self.environment = cluster.environment({**own, "HVDGRAB_SLURM_SECONDS": "0.5", "COLUMNS": "200"})

    def type(self, *words: str, code: int | None = 0, before: tuple[str, ...] = ()) -> str:
        """Run the command; returns what it printed."""
        argv = [*self._on_host, *before, sys.executable, "-m", "launcher", *words]
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SLOW, check=False
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def job(self, data: Mapping[str, Any], *words: str, code: int | None = 0, before: tuple[str, ...] = ()) -> dict[str, Any]:
        """Submit a job; returns the JSON of the answer."""
        base = {"resources": {"ranks": 2, "allow_root": True, "threads_per_rank": 1}}
        (self.folder / "job.yaml").write_text(json.dumps({**base, **data}))
        found: dict[str, Any] = json.loads(self.type("job.yaml", "--json", *words, code=code, before=before))
        return found

    def state(self, job_id: str) -> dict[str, Any]:
        """A job's JSON."""
        found: dict[str, Any] = json.loads(self.type("show", job_id, "--json", code=None))
        return found


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    somebody = User(cluster, tmp_path)
    yield somebody
    somebody.type("daemon", "stop", code=None)


SLURM = {"backend": {"kind": "slurm"}, "slurm": {"nodes": 2}}


def test_a_job_of_slurm_is_followed_to_its_end_with_its_code(user: User) -> None:
    code = "import os, sys; print('on', os.environ['SLURMD_NODENAME']); sys.exit(5 * (os.environ['SLURM_PROCID'] == '1'))"
    ended = user.job({"command": ["python", "-c", code], **SLURM}, code=5)
    assert (ended["state"], ended["exit_code"]) == ("failed", 5)
    assert "rank 1 on n2 ended with exit code 5" in ended["reason"]
    found = user.state(ended["id"])
    assert re.search(rf"^SLURM +job {found['slurm_job_id']} on n1, n2$", user.type("show", ended["id"]), re.MULTILINE)
    assert re.search(rf" started +.*slurm_job_id=\"?{found['slurm_job_id']}\b", user.type("events", ended["id"]))


@pytest.mark.soak
def test_a_job_that_ended_and_was_forgotten_while_the_daemon_was_down_is_recorded_right(user: User) -> None:
    begun = user.job({"command": ["python", "-c", COUNT, "10", "0.2"], **SLURM}, "--detach")
    log = Path(begun["dir"]) / "logs" / "rank-0000.log"
    appears(log, "starts", 120)
    user.type("daemon", "stop")
    appears(log, "done", 120)
    wait_for(lambda: begun["id"] not in user.cluster.run("squeue", "-h", "-t", "all", "-o", "%j").stdout, "the purge", 90)
    user.type("daemon", "start")
    user.type("wait", begun["id"])
    found = user.state(begun["id"])
    assert (found["state"], found["exit_code"]) == ("succeeded", 0)
    assert log.read_text().splitlines() == ["starts at 0", "done"]


@pytest.mark.soak
def test_an_administrators_requeue_and_a_scancel_reach_the_record(user: User) -> None:
    counting = {"command": ["python", "-c", COUNT, "500", "0.2"], "restart": {"backoff": "0s"}, **SLURM}
    begun = user.job(counting, "--detach")
    log = Path(begun["dir"]) / "logs" / "rank-0000.log"
    appears(log, "starts", 120)
    number = user.cluster.run("squeue", "-h", "-n", f"{begun['id']}.1", "-o", "%i").stdout.strip()
    user.cluster.run("scontrol", "requeue", number)
    appears(log, "=== attempt 2", 120)
    user.cluster.run("scancel", number)
    user.type("wait", begun["id"], code=None)
    found = user.state(begun["id"])
    assert (found["state"], found["reason"]) == ("cancelled", "cancelled in SLURM, by scancel or an administrator")
    assert found["attempt"] == 2


def test_inside_an_allocation_the_job_uses_it(user: User) -> None:
    code = "import os; print(os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'])"
    before = ("salloc", "-Q", "-N2", "-n2")
    ended = user.job({"command": ["python", "-c", code]}, "--foreground", before=before)
    assert (ended["state"], ended["backend"]) == ("succeeded", "srun")
    said = [(Path(ended["dir"]) / "logs" / f"rank-000{rank}.log").read_text().split() for rank in (0, 1)]
    assert [words[1] for words in said] == ["n1", "n2"]
    assert said[0][0] == said[1][0]


@pytest.mark.soak
def test_jobs_wait_for_what_they_depend_on_by_the_daemon_or_by_slurm_itself(user: User) -> None:
    first = user.job({"command": ["python", "-c", COUNT, "100", "0.2"], **SLURM}, "--detach")
    log = Path(first["dir"]) / "logs" / "rank-0000.log"
    appears(log, "starts", 120)
    number = user.cluster.run("squeue", "-h", "-n", f"{first['id']}.1", "-o", "%i").stdout.strip()
    look = f"import pathlib; print('done' in pathlib.Path({str(log)!r}).read_text())"
    after = {"command": ["python", "-c", look], **SLURM}
    by_daemon = user.job({**after, "depends_on": [first["id"]]}, "--detach")
    by_slurm = user.job({**after, "slurm": {"nodes": 1, "extra": [f"--dependency=afterok:{number}"]}}, "--detach")
    words = "waits for a job on which it depends"
    wait_for(lambda: words in str(user.state(by_slurm["id"])["reason"]), "SLURM's reason in words", 60)
    for job in (by_daemon, by_slurm):
        user.type("wait", job["id"])
        assert (Path(job["dir"]) / "logs" / "rank-0000.log").read_text().split() == ["True"]
    failing = user.job({"command": ["python", "-c", "raise SystemExit(3)"], **SLURM}, code=3)
    never = user.job({**after, "depends_on": [failing["id"]]}, code=None)
    assert never["state"] == "failed"
    assert failing["id"] in never["reason"]

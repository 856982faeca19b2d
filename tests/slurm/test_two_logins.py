"""Two login nodes that share a home: hosts with a name and a process table of their own, and one record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.real import need
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.driver import COUNT, appears
from tests.slurm.test_launch import User

pytestmark = pytest.mark.soak
NODES = {"backend": {"kind": "slurm"}, "slurm": {"nodes": 2}}


class Login:
    """One of somebody's login nodes."""

    def __init__(self, user: User, name: str) -> None:
        self.name = name
        self.user = user
        boot = ["unshare", "-u", "-p", "-m", "-f", "--mount-proc", "sh", "-c", f"hostname {name}; echo up; exec sleep 3600"]
        self._holder = subprocess.Popen(boot, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "up\n"
        (first,) = psutil.Process(self._holder.pid).children()
        self._enter = ("nsenter", "-t", str(first.pid), "-u", "-p", "-m", f"--wd={user.folder}")
        own = {"HVDGRAB_RUNTIME": str(user.folder / name), "HVDGRAB_JOBS": str(user.folder / "jobs")}
        self.environment = {**user.environment, **own}

    def type(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [*self._enter, sys.executable, "-m", "launcher", *words]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=300, check=False)

    def state(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.type("show", job_id, "--json").stdout)
        return found

    def submit(self, until: int) -> tuple[str, Path]:
        resources = {"ranks": 2, "allow_root": True, "threads_per_rank": 1}
        data = {"command": ["python", "-c", COUNT, str(until), "0.2"], "resources": resources, **NODES}
        (self.user.folder / "job.yaml").write_text(json.dumps(data))
        done = self.type("job.yaml", "--detach", "--json")
        assert done.returncode == 0, done
        found = json.loads(done.stdout)
        return found["id"], Path(found["dir"]) / "logs" / "rank-0000.log"

    def off(self) -> None:
        """Lose it with all that runs on it, as by a power failure."""
        for child in psutil.Process(self._holder.pid).children():
            child.kill()
        self._holder.communicate(timeout=20)


@pytest.fixture
def logins(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Login, Login]]:
    need("root, for hosts with names of their own", os.geteuid() == 0)
    user = User(cluster, tmp_path)
    pair = Login(user, "login1"), Login(user, "login2")
    yield pair
    for login in pair:
        if login._holder.poll() is None:
            login.off()


def test_the_other_login_node_reads_the_record_and_says_whose_it_is(logins: tuple[Login, Login]) -> None:
    first, second = logins
    job_id, log = first.submit(1000)
    appears(log, "starts", 120)
    wait_for(lambda: first.state(job_id)["state"] == "running", "the record", 30)
    for words in (("ls",), ("show", job_id), ("logs", job_id), ("daemon", "status")):
        done = second.type(*words)
        assert done.returncode == (3 if words[0] == "daemon" else 0), done
        assert "login1" in done.stdout + done.stderr or words[0] == "logs", done
    assert second.state(job_id)["state"] == "running"
    assert "starts at 0" in second.type("logs", job_id).stdout
    jobs = sorted(path.name for path in (first.user.folder / "jobs").iterdir())
    for words in (("cancel", job_id), ("wait", job_id), ("job.yaml", "--detach"), ("daemon", "start"), ("retry", job_id)):
        done = second.type(*words)
        assert done.returncode == 3, (words, done)
        assert "daemon on host login1, which lives: give commands there" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in (first.user.folder / "jobs").iterdir()) == jobs
    assert first.state(job_id)["state"] == "running"
    assert first.type("cancel", job_id).returncode == 0


def test_what_a_stopped_daemon_hands_over_the_other_login_node_takes_at_once(logins: tuple[Login, Login]) -> None:
    first, second = logins
    job_id, log = first.submit(60)
    appears(log, "starts", 120)
    first.type("daemon", "stop")
    assert second.type("wait", job_id).returncode == 0
    found = second.state(job_id)
    assert (found["state"], found["owner"], found["attempts"]) == ("succeeded", "login2", 1)
    assert log.read_text().splitlines() == ["starts at 0", "done"]


def test_jobs_of_a_login_node_that_is_gone_are_taken_over_when_its_lease_has_run_out(logins: tuple[Login, Login]) -> None:
    first, second = logins
    job_id, log = first.submit(500)
    waiting, _ = first.submit(1)
    appears(log, "starts", 120)
    wait_for(lambda: first.state(job_id)["state"] == "running", "the record", 30)
    first.off()
    assert second.state(job_id)["owner"] == "login1"
    done = second.type("daemon", "start")
    assert done.returncode == 0, done
    assert second.state(job_id)["owner"] == "login2"
    assert second.type("cancel", job_id).returncode == 0
    assert (second.state(job_id)["state"], second.state(job_id)["attempts"]) == ("cancelled", 1)
    assert second.type("wait", waiting).returncode == 0
    assert second.state(waiting)["state"] == "succeeded"
    assert second.type("daemon", "stop").returncode == 0

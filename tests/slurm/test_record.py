"""What the daemon's record says of a job, whatever SLURM and its nodes do meanwhile."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.attempt.sweep import marked
from launcher.daemon.context import CRASH_STEPS
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.words import FINAL
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.driver import COUNT, appears
from tests.slurm.test_launch import User

NODES = {"backend": {"kind": "slurm"}, "slurm": {"nodes": 2}}


class Recorded:
    """A job in the record of somebody's daemon."""

    def __init__(self, user: User, job_id: str, directory: str) -> None:
        self.user = user
        self.id = job_id
        self.paths = JobPaths(Path(directory))

    @property
    def view(self) -> dict[str, Any]:
        return self.user.state(self.id)

    def until(self, condition: Callable[[dict[str, Any]], object], seconds: float = 120) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not condition(view := self.view):
            assert time.monotonic() < end, (view, self.user.cluster.run("squeue", "-a", "-t", "all").stdout)
            time.sleep(0.3)
        return view

    def ended(self, seconds: float = 240) -> dict[str, Any]:
        return self.until(lambda view: view["state"] in FINAL, seconds)

    def end(self, number: int) -> AttemptEnd:
        found = AttemptEnd.read(self.paths.attempt(number))
        assert found is not None
        return found

    def log(self, rank: int = 0) -> list[str]:
        return self.paths.rank_log(rank).read_text().splitlines()

    def number(self) -> str:
        """SLURM's own number of the job."""
        wait_for(lambda: self.user.cluster.run("squeue", "-h", "-n", f"{self.id}.1", "-o", "%i").stdout.strip(), "the job", 60)
        return self.user.cluster.run("squeue", "-h", "-n", f"{self.id}.1", "-o", "%i").stdout.strip()

    def names(self) -> int:
        """How many jobs of SLURM were ever submitted for the first attempt, as far as it remembers."""
        return self.user.cluster.run("squeue", "-h", "-t", "all", "-o", "%j").stdout.split().count(f"{self.id}.1")


def submitted(user: User, data: Mapping[str, Any], *words: str) -> Recorded:
    begun = user.job({**NODES, **data}, "--detach", *words)
    return Recorded(user, begun["id"], begun["dir"])


def counting(until: int, **further: Any) -> dict[str, Any]:
    return {"command": ["python", "-c", COUNT, str(until), "0.2"], "restart": {"backoff": "0s"}, **further}


def spooled(user: User, name: str, slurm: Mapping[str, Any], ranks: int = 2) -> Recorded:
    """A job that is not checked before it is submitted, as where SLURM cannot be asked."""
    data = {"name": name, **counting(1), **NODES, "slurm": slurm}
    data["resources"] = {"ranks": ranks, "allow_root": True, "threads_per_rank": 1}
    user.type("daemon", "start")
    (user.folder / "state" / "spool" / f"{name}.yaml").write_text(json.dumps(data))
    found: list[dict[str, Any]] = []

    def there() -> bool:
        found[:] = [job for job in json.loads(user.type("ls", "--json")) if job["name"] == name]
        return bool(found)

    wait_for(there, name, 60)
    return Recorded(user, found[0]["id"], found[0]["dir"])


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    somebody = User(cluster, tmp_path)
    yield somebody
    somebody.type("daemon", "stop", code=None)


@pytest.fixture
def breaker(own_cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    """Somebody whose cluster may be broken."""
    somebody = User(own_cluster, tmp_path)
    yield somebody
    somebody.type("daemon", "stop", code=None)


def test_held_too_large_and_refused_jobs_say_why_in_the_record(user: User) -> None:
    held = submitted(user, counting(1, slurm={"nodes": 2, "extra": ["--hold"]}))
    large = spooled(user, "large", {"nodes": 9}, ranks=9)
    refused = spooled(user, "refused", {"partition": "nowhere"})
    view = refused.ended()
    assert (view["state"], view["exit_code"]) == ("failed", 1)
    assert "SLURM refused the job" in view["reason"]
    assert "nvalid partition" in view["reason"]
    assert large.until(lambda view: "more nodes or cores than its partition has" in (view["reason"] or ""))["state"] == "starting"
    assert held.until(lambda view: "is held; `scontrol release" in (view["reason"] or ""))["state"] == "starting"
    user.type("cancel", large.id)
    assert large.view["state"] == "cancelled"
    user.cluster.run("scontrol", "release", held.number())
    assert held.ended()["state"] == "succeeded"


@pytest.mark.soak
@pytest.mark.parametrize("when", ["submit", "run", "end"])
def test_a_frozen_controller_ends_nothing_and_starts_nothing_twice(breaker: User, when: str) -> None:
    breaker.type("daemon", "start")
    if when == "submit":
        breaker.cluster.signal("slurmctld", signal.SIGSTOP)
    job = submitted(breaker, counting(25))
    if when != "submit":
        appears(job.paths.rank_log(0), "starts" if when == "run" else "done", 120)
        breaker.cluster.signal("slurmctld", signal.SIGSTOP)
    frozen = time.monotonic()
    seen = set()
    while time.monotonic() - frozen < 30:
        seen.add(job.view["state"])
        time.sleep(1)
    wanted = {"unknown"} if when == "submit" else {"running", "unknown", "starting"}
    assert seen <= wanted | {"queued", "starting"}, seen
    assert "unknown" in seen or job.until(lambda view: view["state"] == "unknown")
    assert "SLURM" in job.view["reason"]
    breaker.cluster.signal("slurmctld", signal.SIGCONT)
    view = job.ended()
    assert (view["state"], view["exit_code"], view["attempts"]) == ("succeeded", 0, 1)
    assert job.log() == ["starts at 0", "done"]
    assert job.names() <= 1


@pytest.mark.soak
def test_a_controller_that_is_killed_and_comes_back(breaker: User) -> None:
    job = submitted(breaker, counting(200))
    appears(job.paths.rank_log(0), "starts", 120)
    time.sleep(8)  # what a controller has not saved yet, every few seconds, is lost with it
    breaker.cluster.signal("slurmctld", signal.SIGKILL)
    view = job.until(lambda view: view["state"] == "unknown")
    assert "SLURM does not answer" in view["reason"]
    breaker.cluster.start_controller()
    job.until(lambda view: view["state"] == "running")
    view = job.ended()
    assert (view["state"], view["attempts"]) == ("succeeded", 1)


@pytest.mark.soak
def test_a_job_given_while_the_controller_is_dead_starts_once_it_is_back(breaker: User) -> None:
    breaker.cluster.signal("slurmctld", signal.SIGKILL)
    job = submitted(breaker, counting(5))
    view = job.until(lambda view: "whether SLURM has taken the job is not known" in (view["reason"] or ""))
    assert view["state"] in ("starting", "unknown")
    breaker.cluster.start_controller()
    view = job.ended()
    assert (view["state"], view["attempts"]) == ("succeeded", 1)
    assert job.log() == ["starts at 0", "done"]


@pytest.mark.soak
def test_ranks_that_outlive_their_lost_node_are_ended_when_the_next_attempt_begins(breaker: User) -> None:
    job = submitted(breaker, counting(250, restart={"lost_node": 2, "backoff": "0s"}))
    appears(job.paths.rank_log(1), "starts", 120)
    job.until(lambda view: view["state"] == "running", 60)  # else "starting" below may be the first attempt's
    breaker.cluster.signal("n2", signal.SIGKILL)  # its ranks live on
    job.until(lambda view: view["state"] in ("starting", "restarting"), 180)
    breaker.cluster.start_node("n2")
    appears(job.paths.rank_log(0), "=== attempt 2", 180)
    wait_for(lambda: not marked(job.id, 1), "the end of the first attempt's ranks", 30)
    view = job.ended()
    assert (view["state"], view["attempt"]) == ("succeeded", 2)
    assert job.end(1).cause in ("lost_node", "preemption")
    assert job.log()[0] == "starts at 0"
    assert job.log()[-1] == "done"


@pytest.mark.soak
def test_a_node_that_fails_every_job_at_once_is_left_out_in_the_next_attempt(user: User) -> None:
    code = "import os, sys; sys.exit(os.environ['SLURMD_NODENAME'] == 'n1')"
    one = {"resources": {"ranks": 1, "allow_root": True}, "slurm": {"nodes": 1}}
    job = submitted(user, {"command": ["python", "-c", code], "restart": {"failure": 3, "backoff": "0s"}, **one})
    view = job.ended()
    assert (view["state"], view["attempt"]) == ("succeeded", 2)
    assert (job.end(1).bad_hosts, job.end(2).hosts) == (("n1",), ("n2",))


@pytest.mark.soak
@pytest.mark.parametrize("requeue", [True, False])
def test_our_own_time_limit_ends_a_job_with_its_reason(user: User, requeue: bool) -> None:
    resources = {"ranks": 2, "allow_root": True, "threads_per_rank": 1, "time_limit": "12s"}
    job = submitted(user, counting(1000, resources=resources, slurm={"nodes": 2, "requeue": requeue}))
    view = job.ended()
    assert (view["state"], view["attempts"]) == ("failed", 1)
    assert "time limit" in view["reason"]
    assert job.end(1).cause == "time_limit"


@pytest.mark.soak
def test_slurms_time_limit_ends_a_job_with_its_reason(user: User) -> None:
    job = submitted(user, counting(10_000))
    appears(job.paths.rank_log(0), "starts", 120)
    assert user.cluster.run("scontrol", "update", f"JobId={job.number()}", "TimeLimit=1").returncode == 0
    view = job.ended()
    assert (view["state"], view["reason"]) == ("failed", "the job reached SLURM's time limit")


@pytest.mark.soak
def test_what_scancel_ended_is_cancelled_whether_it_waited_or_ran(user: User) -> None:
    waiting = submitted(user, counting(1, slurm={"nodes": 2, "extra": ["--hold"]}))
    running = submitted(user, counting(1000))
    appears(running.paths.rank_log(0), "starts", 120)
    for job in (waiting, running):
        user.cluster.run("scancel", job.number())
        view = job.ended()
        assert (view["state"], view["exit_code"]) == ("cancelled", 130)
        assert "cancelled in SLURM" in view["reason"]
    assert not waiting.paths.attempt(1).claim.exists()


@pytest.mark.soak
def test_jobs_that_ended_and_were_forgotten_while_the_daemon_was_down(user: User) -> None:
    """Without accounting only their own files say how they ended, and one that never began has not succeeded."""
    failing = submitted(user, {"command": ["python", "-c", "import time; time.sleep(3); raise SystemExit(4)"]})
    cancelled = submitted(user, counting(1000))
    never = submitted(user, counting(1, slurm={"nodes": 2, "extra": ["--hold"]}))
    appears(cancelled.paths.rank_log(0), "starts", 120)
    never.until(lambda view: "held" in (view["reason"] or ""))
    numbers = [never.number(), cancelled.number()]
    user.type("daemon", "stop")
    wait_for(failing.paths.attempt(1).end.exists, "the failing job's end", 60)
    user.cluster.run("scancel", *numbers)
    wait_for(lambda: not user.cluster.run("squeue", "-h", "-t", "all").stdout, "the purge", 90)
    user.type("daemon", "start")
    assert (failing.ended()["state"], failing.view["exit_code"]) == ("failed", 4)
    assert (cancelled.ended()["state"], cancelled.view["reason"]) == (
        "cancelled", "cancelled in SLURM, by scancel or an administrator")  # fmt: skip
    view = never.ended()
    assert view["state"] == "failed"
    assert "ended before it began" in view["reason"]


@pytest.mark.soak
@pytest.mark.parametrize("place", [name for name in CRASH_STEPS if name.startswith(("start-", "end-"))])
def test_a_daemon_killed_at_any_step_starts_no_job_of_slurm_twice(user: User, place: str) -> None:
    user.environment["HVDGRAB_CRASH_AT"] = place
    user.type("daemon", "start")
    del user.environment["HVDGRAB_CRASH_AT"]
    job = submitted(user, counting(10))
    wait_for(lambda: not json.loads(user.type("daemon", "status", "--json", code=None))["running"], "the crash", 120)
    user.type("daemon", "start")
    view = job.ended()
    assert (view["state"], view["attempts"]) == ("succeeded", 1)
    assert job.log() == ["starts at 0", "done"]
    assert job.names() <= 1


@pytest.mark.soak
def test_a_job_needs_no_living_daemon_and_no_job_variable_of_the_submitter_reaches_it(user: User) -> None:
    outer = {"SLURM_JOB_ID": "7", "SLURM_TIMELIMIT": "1", "SBATCH_PARTITION": "closed", "PMIX_RANK": "3", "HOROVOD_RANK": "9"}
    user.environment.update(outer)
    found = "os.environ['SLURM_JOB_PARTITION'], os.environ.get('PMIX_RANK', '0') in '01', os.environ.get('HOROVOD_RANK')"
    code = f"import os; print({found}, os.environ['X'])"
    user.environment["X"] = "kept"
    job = submitted(user, {"command": ["python", "-c", f"import time; time.sleep(4); {code}"]})
    wait_for(lambda: job.number(), "the job", 60)
    user.type("daemon", "stop")
    wait_for(job.paths.attempt(1).end.exists, "the end", 120)
    assert job.end(1).state == "succeeded"
    assert job.log() == ["main True None kept"]


ONCE = "import os, sys; print('attempt', os.environ['HVDGRAB_ATTEMPT']); sys.exit(os.environ['HVDGRAB_ATTEMPT'] == '1')"


@pytest.mark.soak
@pytest.mark.parametrize("by", ["the job itself", "the daemon", "the daemon, because SLURM refuses"])
def test_one_alone_decides_on_the_next_attempt(user: User, by: str) -> None:
    if by.endswith("refuses"):
        shims = user.folder / "shims"
        shims.mkdir()
        refusal = 'echo "Requested operation is presently disabled" >&2; exit 1'
        (shims / "scontrol").write_text(f'#!/bin/sh\n[ "$1" = requeue ] && {{ {refusal}; }}\nexec /usr/bin/scontrol "$@"\n')
        (shims / "scontrol").chmod(0o755)
        user.environment["PATH"] = f"{shims}:{user.environment['PATH']}"
    job = submitted(user, {"command": ["python", "-c", ONCE], "restart": {"failure": 2, "backoff": "1s"},
                           "slurm": {"nodes": 2, "requeue": by != "the daemon"}})  # fmt: skip
    view = job.ended()
    assert (view["state"], view["attempt"], view["attempts"]) == ("succeeded", 2, 2)
    lines = [line for rank in (0, 1) for line in job.log(rank) if not line.startswith("===")]
    assert set(lines) == {"attempt 1", "attempt 2"}
    assert lines.count("attempt 2") == 2
    assert lines.count("attempt 1") in (1, 2), "a rank that fails ends the other, perhaps before it has said anything"
    names = user.cluster.run("squeue", "-h", "-t", "all", "-o", "%j").stdout.split()
    assert (f"{job.id}.2" in names) is (by != "the job itself")


DEAF = """
import os, signal, subprocess, sys, time
subprocess.Popen(["setsid", sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


@pytest.mark.soak
@pytest.mark.parametrize("frozen", [False, True])
def test_cancel_ends_all_that_carries_the_jobs_mark_though_the_controller_may_not_answer(breaker: User, frozen: bool) -> None:
    job = submitted(breaker, {"command": ["python", "-c", DEAF]})
    for rank in (0, 1):
        appears(job.paths.rank_log(rank), "deaf", 120)
    assert len(marked(job.id, 1)) >= 4
    if frozen:
        breaker.cluster.signal("slurmctld", signal.SIGSTOP)
    breaker.type("cancel", job.id, "--no-wait") if frozen else breaker.type("cancel", job.id)
    wait_for(lambda: not marked(job.id), "the end of all processes", 60)
    if frozen:
        assert job.view["state"] not in FINAL
        breaker.cluster.signal("slurmctld", signal.SIGCONT)
    view = job.ended()
    assert (view["state"], view["exit_code"]) == ("cancelled", 130)

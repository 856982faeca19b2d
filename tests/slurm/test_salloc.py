"""Jobs that are given from inside ``salloc`` to a daemon that was started outside of it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.daemon.requests import ranks_here
from launcher.host.program import Answer
from launcher.jobdir import words
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.paths import JobPaths
from launcher.slurm.causes import logged, read_log, why_over
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.driver import COUNT
from tests.slurm.test_launch import User
from tests.slurm.test_pure import plan

SALLOC = ("salloc", "-Q", "-N2", "-n2")
LAUNCH = shlex.join([sys.executable, "-m", "launcher"])


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    somebody = User(cluster, tmp_path)
    somebody.environment["HVDGRAB_CPUS"] = "1"  # this host's cores have nothing to do with the allocation's
    somebody.type("daemon", "start")
    yield somebody
    somebody.type("daemon", "stop", code=None)


def write(user: User, code: str, *arguments: str, **further: object) -> None:
    resources = {"ranks": 2, "allow_root": True, "threads_per_rank": 1}
    data = {"command": ["python", "-c", code, *arguments], "resources": resources, **further}
    (user.folder / "job.yaml").write_text(json.dumps(data))


def inside(user: User, line: str, *options: str) -> list[JobPaths]:
    """Run a shell line inside an allocation; returns all jobs of the user, oldest first."""
    done = subprocess.run([*SALLOC, *options, "sh", "-c", line], cwd=user.folder, env=user.environment, capture_output=True,
                          text=True, timeout=300, check=False)  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return [JobPaths(Path(job["dir"])) for job in json.loads(user.type("ls", "--json"))]


def state(user: User, job: JobPaths) -> tuple[str, str]:
    found = user.state(job.id)
    return found["state"], found["reason"] or ""


def test_the_daemon_runs_a_job_in_the_submitters_allocation(user: User) -> None:
    write(user, "import os; print(os.environ['SLURM_JOB_ID'], os.environ['SLURMD_NODENAME'])")
    (job,) = inside(user, f"echo $SLURM_JOB_ID > number; {LAUNCH} job.yaml")
    assert state(user, job) == ("succeeded", "")
    number = (user.folder / "number").read_text().strip()
    assert [job.rank_log(rank).read_text().split() for rank in (0, 1)] == [[number, "n1"], [number, "n2"]]
    end = AttemptEnd.read(job.attempt(1))
    assert end is not None
    assert end.hosts == ("n1", "n2")


def test_a_job_whose_allocation_ends_ends_with_that_reason_and_cannot_go_on_elsewhere(user: User) -> None:
    write(user, COUNT, "100000", "0.2", restart={"preemption": "unlimited", "failure": 3, "backoff": "0s"})
    wait = "while ! grep -q starts jobs/*/logs/rank-0001.log 2>/dev/null; do sleep 0.2; done"
    (job,) = inside(user, f"{LAUNCH} job.yaml --detach; {wait}")
    user.type("wait", job.id, code=None)
    ended, reason = state(user, job)
    assert ended == "cancelled"
    assert "'s allocation " in reason
    assert reason.endswith(", in which the job runs, was given back or cancelled")
    user.type("retry", job.id)
    user.type("wait", job.id, code=None)
    assert "there is none here: SLURM_JOB_ID is not set" in state(user, job)[1]


@pytest.mark.soak
def test_jobs_of_one_allocation_run_one_after_the_other_and_variants_too(user: User) -> None:
    write(user, COUNT, "15", "0.2", variants={"seed": [1, 2, 3]})
    jobs = inside(user, f"{LAUNCH} job.yaml")
    ends = [AttemptEnd.read(job.attempt(1)) for job in jobs]
    assert [end.state for end in ends if end] == ["succeeded"] * 3
    times = sorted((job.attempt(1).rank_mark(0).stat().st_ctime, job.attempt(1).claim.stat().st_mtime) for job in jobs)
    assert times[1][0] - times[0][0] > 2
    assert times[2][0] - times[1][0] > 2


@pytest.mark.soak
def test_the_allocations_time_limit_is_the_reason(user: User) -> None:
    write(user, COUNT, "100000", "0.2")
    (job,) = inside(user, f"{LAUNCH} job.yaml", "-t1")
    assert state(user, job)[0] == "failed"
    assert state(user, job)[1].endswith("reached its time limit")


@pytest.mark.soak
def test_a_job_that_waited_until_its_allocation_was_over_is_not_started_on_others_nodes(user: User) -> None:
    user.environment["HVDGRAB_MAX_RUNNING"] = "1"
    user.type("daemon", "stop")
    user.type("daemon", "start")
    (user.folder / "first.yaml").write_text(json.dumps({"command": ["sleep", "30"], "resources": {"ranks": 1}, "name": "first"}))
    user.type("first.yaml", "--detach")
    write(user, "print('ran')")
    jobs = inside(user, f"{LAUNCH} job.yaml --detach")
    user.type("wait", jobs[-1].id, code=None)
    ended, reason = state(user, jobs[-1])
    assert ended == "failed"
    assert "in which the job was to run, " in reason
    assert reason.endswith(": start it from a new one")
    assert not jobs[-1].rank_log(0).exists()


@pytest.mark.soak
def test_in_the_foreground_the_end_of_the_allocation_is_said_too(user: User) -> None:
    write(user, COUNT, "100000", "0.2")
    (job,) = inside(user, f"(sleep 8; scancel $SLURM_JOB_ID) & setsid {LAUNCH} job.yaml --foreground > out 2>&1; true")
    wait_for(job.attempt(1).end.exists, "the end", 60)
    end = AttemptEnd.read(job.attempt(1))
    assert end is not None
    assert (end.state, "allocation" in (end.reason or "")) == ("cancelled", True), end


def test_a_job_in_an_allocation_takes_nothing_of_this_host():
    made = plan("resources: {ranks: 64, gpus_per_rank: 1}")
    assert ranks_here(replace(made, launch=replace(made.launch, backend="srun")), "login") == 0
    assert ranks_here(replace(made, launch=replace(made.launch, backend="mpirun")), "login") == 64


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Answer(0, "JobId=7 JobState=RUNNING RunTime=00:00:10 TimeLimit=00:01:00", ""), None),
        (Answer(0, "JobId=7 JobState=COMPLETING RunTime=00:00:10 TimeLimit=00:01:00", ""), words.CANCELLED),
        (Answer(0, "JobId=7 JobState=COMPLETING RunTime=00:01:10 TimeLimit=00:01:00", ""), words.TIME_LIMIT),
        (Answer(0, "JobId=7 JobState=COMPLETING RunTime=1-00:01:10 TimeLimit=UNLIMITED", ""), words.CANCELLED),
        (Answer(0, "JobId=7 JobState=TIMEOUT RunTime=00:00:10", ""), words.TIME_LIMIT),
        (Answer(0, "JobId=7 JobState=NODE_FAIL RunTime=00:00:10", ""), words.LOST_NODE),
        (Answer(0, "JobId=7 JobState=CANCELLED PreemptTime=2026-11-29T21:18:43", ""), words.PREEMPTION),
        (Answer(1, "", "slurm_load_jobs error: Invalid job id specified"), words.CANCELLED),
        (Answer(1, "", "Unable to contact slurm controller"), None), (Answer(None, "", "no answer"), None),
        (Answer(0, "", ""), None),
    ],
)  # fmt: skip
def test_only_slurms_word_ends_an_allocation(answer, cause):
    found = why_over("7", "", lambda: answer)
    assert (found.cause if found else None) == cause


def test_the_nodes_say_why_a_step_ended_but_a_cancelled_step_is_no_ended_allocation(tmp_path):
    log = tmp_path / "backend.log"
    for line, cause in (
        ("slurmstepd-n1: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-30T00:35:20 DUE TO TIME LIMIT ***", words.TIME_LIMIT),
        ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T00:35:20 DUE TO PREEMPTION ***", words.PREEMPTION),
        ("slurmstepd-n1: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-30T00:35:20 ***", None),
        ("slurmstepd-n1: error: *** STEP 71.1 ON n1 CANCELLED AT 2026-11-30T00:35:20 DUE TO TIME LIMIT ***", None),
    ):
        log.write_text(line + "\n")
        found = logged(read_log(log), "7", of_step=True)
        assert (found.cause if found else None) == cause
    assert logged(read_log(tmp_path / "none"), "7", of_step=True) is None

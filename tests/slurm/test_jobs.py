from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from launcher.attempt.starter import Alive, Gone, StartError, Unknown, Unreachable
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.marks import read_marks
from launcher.jobdir.stop import Stop
from launcher.jobdir.words import CANCELLED
from launcher.slurm.script import token
from launcher.slurm.submission import Submission
from tests.slurm.cluster import Cluster, pmix_present
from tests.slurm.driver import COUNT, Driver, appears, lines, recorded

WORLD = "from mpi4py import MPI\nw = MPI.COMM_WORLD\nprint(f'rank {w.rank} of {w.size} sum {w.allreduce(1)}', flush=True)\n"


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Driver:
    return Driver(cluster, tmp_path)


def counting(until: int, pause: float = 0.2, **further: object) -> dict[str, object]:
    return {"command": ["python", "-c", COUNT, str(until), str(pause)], **further}


@pytest.mark.parametrize("mpi", ["auto", "mpirun"])
def test_ranks_on_both_nodes_are_one_world_and_the_first_failing_ranks_code_is_the_jobs(driver: Driver, mpi: str) -> None:
    hostile = ["$HOME", "a b", "`id`", "", "é\n'\""]
    code = "import mpi4py, sys, time; mpi4py.rc.finalize = False\n" + WORLD + "print(sys.argv[1:])\nw.Barrier()\n"
    code += "if w.rank == 2: sys.exit(7)\ntime.sleep(30)"
    job, end = driver.run({"command": ["python", "-c", code, *hostile], "resources": {"ranks": 4}, "slurm": {"mpi": mpi}})
    assert (end.state, end.cause, end.exit_code, end.first_failing_rank) == ("failed", "failure", 7, 2), end
    assert (end.hosts, end.bad_hosts) == (("n1", "n2"), ("n2",))
    assert [mark.host for mark in read_marks(job.attempt(1), 4) if mark] == ["n1", "n1", "n2", "n2"]
    for rank in range(4):
        assert lines(job, rank)[:2] == [f"rank {rank} of 4 sum 4", str(hostile)]
    program = "srun" if mpi == "auto" and pmix_present() else "mpirun"
    assert f"ranks are started by {program}" in job.backend_log.read_text()


def test_variables_and_options_of_an_outer_allocation_do_not_reach_the_job(driver: Driver) -> None:
    job, plan = driver.prepare({"command": ["python", "-c", "import os; print(os.environ['SLURM_JOB_NAME'], os.environ['X'])"]})
    outer = {"SBATCH_TIMELIMIT": "nonsense", "SBATCH_PARTITION": "closed", "SLURM_NTASKS": "64", "SLURM_JOB_NAME": "outer",
             "PMIX_RANK": "5", "OMPI_COMM_WORLD_RANK": "5", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "X": "kept"}  # fmt: skip
    handle = driver.starter.start(job, 1, plan, driver.cluster.environment() | outer)
    driver.wait(handle)
    end = AttemptEnd.read(job.attempt(1))
    assert end is not None
    assert end.state == "succeeded", driver.words(handle)
    assert lines(job) == [f"{job.id}.1 kept"]


def test_reasons_for_waiting_and_refusals_are_shown_in_words(driver: Driver) -> None:
    cancelled = driver.cluster.run("sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap=true").stdout.strip()
    driver.cluster.run("scancel", cancelled)
    waits = {
        "is held": {"extra": ["--hold"]},
        "takes no jobs to run": {"partition": "closed"},
        "more nodes or cores than its partition has": {"nodes": 50},
        "more time than its partition allows": {"partition": "short"},
        "never start": {"extra": [f"--dependency=afterok:{cancelled}"]},
    }
    handles = {}
    for words, slurm in waits.items():
        ranks = {"ranks": slurm.get("nodes", 2), "time_limit": "10m"}
        handles[words] = driver.submit({**counting(1), "resources": ranks, "slurm": slurm})[1]
    for words, handle in handles.items():
        seen = driver.until(handle, lambda seen, words=words: words in str(seen))
        assert isinstance(seen, Alive)
        assert not seen.running
    for slurm, words in (({"partition": "nowhere"}, "(?i)invalid partition"), ({"constraint": "gold"}, "(?i)invalid feature")):
        with pytest.raises(StartError, match=words):
            driver.submit({**counting(1), "slurm": slurm})


def test_cancelling_a_waiting_job_by_the_starter_and_by_scancel(driver: Driver) -> None:
    job, handle = driver.submit({**counting(1), "slurm": {"extra": ["--hold"]}})
    driver.until(handle, lambda seen: "held" in str(seen))
    driver.starter.stop(handle, kill=False)
    assert driver.wait(handle).cause == "cancelled"
    job, handle = driver.submit({**counting(1), "slurm": {"extra": ["--hold"]}})
    driver.cluster.run("scancel", handle["job_id"])
    gone = driver.wait(handle)
    assert (gone.cause, gone.reason) == ("cancelled", f"job {handle['job_id']} was cancelled in SLURM")
    assert not job.attempt(1).claim.exists()


def test_a_running_job_is_cancelled_by_the_starter_and_by_scancel(driver: Driver) -> None:
    ends = []
    for how in ("starter", "scancel"):
        job, handle = driver.submit(counting(500))
        appears(job.rank_log(1), "starts")
        if how == "starter":
            job.cancel.touch()
            Stop(CANCELLED, "the user").write(job.attempt(1))
            driver.starter.stop(handle, kill=False)
        else:
            driver.cluster.run("scancel", handle["job_id"])
        driver.wait(handle)
        ends.append(AttemptEnd.read(job.attempt(1)))
    assert [(end.state, end.exit_code) for end in ends if end] == [("cancelled", 130)] * 2
    assert ends[1] is not None
    assert ends[1].reason == "cancelled in SLURM, by scancel or an administrator"


def test_an_administrators_requeue_is_a_second_attempt_with_its_logs_below_the_firsts(driver: Driver) -> None:
    job, handle = driver.submit(counting(15, restart={"backoff": "0s"}))
    appears(job.rank_log(0), "starts")
    assert driver.cluster.run("scontrol", "requeue", handle["job_id"]).returncode == 0
    driver.wait(handle, 90)
    first, second = (AttemptEnd.read(job.attempt(number)) for number in (1, 2))
    assert first is not None
    assert second is not None
    assert (first.cause, "put the job back" in (first.reason or "")) == ("preemption", True), first
    assert (second.state, second.attempt, job.attempt_numbers()) == ("succeeded", 2, [1, 2])
    text = lines(job)
    assert text[0] == "starts at 0"
    assert text[1].startswith("=== attempt 2, ")
    assert text[2:] == ["starts at 0", "done"]


def test_a_submission_that_times_out_but_arrives_is_found_and_not_made_again(driver: Driver, tmp_path: Path) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    sbatch = shims / "sbatch"
    real = "/usr/bin/sbatch"
    complaint = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    sbatch.write_text(f"#!/bin/sh\n{real} \"$@\" >/dev/null\necho '{complaint}' >&2\nexit 1\n")
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    job, plan = driver.prepare(counting(1))
    environment = driver.cluster.environment()
    sick = {**environment, "PATH": f"{shims}:{environment['PATH']}"}
    with pytest.raises(Unreachable, match="not known.*Socket timed out"):
        driver.starter.start(job, 1, plan, sick)
    other = Driver(driver.cluster, tmp_path).starter  # the daemon was killed meanwhile
    handle = other.start(job, 1, plan, sick)
    assert driver.cluster.run("squeue", "-h", "-t", "all", "-n", f"{job.id}.1", "-o", "%i").stdout.split() == [handle["job_id"]]
    driver.wait(handle)
    assert AttemptEnd.read(job.attempt(1)) is not None


def test_a_submission_that_never_arrived_is_made_again_after_a_while(driver: Driver, tmp_path: Path) -> None:
    job, plan = driver.prepare(counting(1))
    conf = driver.cluster.environment()["SLURM_CONF"]
    Submission(token(plan, 1), f"{job.id}.1", 0.0, conf=conf).write(job.attempt(1))
    begun = time.monotonic()
    while True:
        try:
            assert driver.starter.find(job, 1) is None  # as the daemon does it: it looks, and only then starts
            handle = driver.start(job, plan)
            break
        except Unreachable as error:
            assert "waiting to see" in str(error)
            assert time.monotonic() - begun < 60
            time.sleep(0.2)
    assert time.monotonic() - begun >= 3.0
    driver.wait(handle)
    assert AttemptEnd.read(job.attempt(1)) is not None


def test_two_jobs_of_one_attempt_run_it_once(driver: Driver) -> None:
    job, plan = driver.prepare(counting(5))
    first = driver.start(job, plan)
    (job.attempt(1).root / "submission.json").unlink()
    second = driver.start(job, plan)
    assert first["job_id"] != second["job_id"]
    driver.wait(first)
    driver.wait(second)
    assert lines(job) == ["starts at 0", "done"]
    assert "has a supervisor already" in driver.words(first)


def test_a_controller_that_does_not_answer_ends_nothing(driver: Driver) -> None:
    job, handle = driver.submit(counting(10))
    driver.until(handle, lambda seen: isinstance(seen, Alive) and seen.running)
    driver.cluster.signal("slurmctld", signal.SIGSTOP)
    try:
        driver.until(handle, lambda seen: isinstance(seen, Unknown), 40)
        other, plan = driver.prepare(counting(1), "other")
        with pytest.raises(Unreachable):
            driver.start(other, plan)
    finally:
        driver.cluster.signal("slurmctld", signal.SIGCONT)
    driver.wait(handle)
    end = AttemptEnd.read(job.attempt(1))
    assert end is not None
    assert end.state == "succeeded"


@pytest.mark.parametrize(
    "squeue",
    ["exit 0", "echo garbage", "printf 'JOBID|STATE|REASON|PARTI'", "echo 'slurm 99.1'; exit 0", "exit 1", "printf '\\377\\376'"],
)
def test_sick_tools_are_no_answer(driver: Driver, tmp_path: Path, squeue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
    (shims / "squeue").chmod(0o755)
    job, _ = driver.prepare(counting(1))
    handle = {"kind": "slurm", "job_id": "1", "conf": None, "clusters": None, "dir": str(job.root), "attempt": 1}
    monkeypatch.setenv("PATH", f"{shims}:{os.environ['PATH']}")
    seen = driver.until(handle, lambda seen: "yet" not in str(seen))
    assert isinstance(seen, Unknown), seen
    assert "SLURM does not answer" in seen.reason


def test_two_hundred_jobs_cost_one_question_an_interval(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = recorded(tmp_path, monkeypatch, "squeue", "sacct", "scontrol")
    driver.starter.interval = interval = 1.0
    environment = driver.cluster.environment()
    handles = {}
    job, _ = driver.prepare(counting(1))
    for number in range(200):
        handles[str(number)] = {"kind": "slurm", "job_id": str(90_000 + number), "conf": environment["SLURM_CONF"],
                                "clusters": None, "dir": str(job.root), "attempt": 1}  # fmt: skip
    begun = time.monotonic()
    while time.monotonic() - begun < 5.5:
        assert len(driver.starter.look(handles)) == 200
        time.sleep(0.05)
    asked = [line for line in calls.read_text().splitlines() if not line.startswith("scontrol show config")]
    assert 3 <= len(asked) <= 5.5 / interval + 1


def test_a_job_that_slurm_has_forgotten_is_gone_only_when_it_shows_no_life(driver: Driver) -> None:
    job, _ = driver.prepare(counting(1))
    conf = driver.cluster.environment()["SLURM_CONF"]
    handle = {"kind": "slurm", "job_id": "77777", "conf": conf, "clusters": None, "dir": str(job.root), "attempt": 1}
    for _ in range(8):
        job.attempt(1).alive.touch()
        assert not isinstance(driver.look(handle), Gone)
        time.sleep(0.5)
    gone = driver.wait(handle, 20)
    assert gone.reason == "SLURM does not know job 77777 any more, and it shows no life"

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from launcher.attempt.starter import Alive, Unknown, Unreachable
from launcher.jobdir.end import AttemptEnd
from tests.slurm.cluster import Cluster
from tests.slurm.driver import COUNT, Driver, appears, lines

pytestmark = pytest.mark.soak


def counting(until: int, pause: float = 0.2, **further: object) -> dict[str, object]:
    return {"command": ["python", "-c", COUNT, str(until), str(pause)], **further}


def end_of(job, number: int = 1) -> AttemptEnd:
    found = AttemptEnd.read(job.attempt(number))
    assert found is not None
    return found


@pytest.mark.parametrize("when", ["submit", "run", "end"])
def test_a_controller_frozen_for_half_a_minute(own_cluster: Cluster, tmp_path: Path, when: str) -> None:
    driver = Driver(own_cluster, tmp_path)
    job, plan = driver.prepare(counting(25))
    if when == "submit":
        own_cluster.signal("slurmctld", signal.SIGSTOP)
        with pytest.raises(Unreachable):
            driver.start(job, plan)
    else:
        handle = driver.start(job, plan)
        appears(job.rank_log(0), "starts")
        if when == "end":
            appears(job.rank_log(0), "done")
        own_cluster.signal("slurmctld", signal.SIGSTOP)
    time.sleep(30)
    if when != "submit":
        assert isinstance(driver.look(handle), Unknown)
    own_cluster.signal("slurmctld", signal.SIGCONT)
    while when == "submit":
        try:
            handle = driver.start(job, plan)
            break
        except Unreachable:
            time.sleep(0.3)
    driver.wait(handle, 90)
    assert end_of(job).state == "succeeded"
    assert lines(job) == ["starts at 0", "done"]
    names = own_cluster.run("squeue", "-h", "-t", "all", "-o", "%j").stdout.split()
    assert names.count(f"{job.id}.1") <= 1


def test_a_controller_that_is_killed_and_started_again(own_cluster: Cluster, tmp_path: Path) -> None:
    driver = Driver(own_cluster, tmp_path)
    job, handle = driver.submit(counting(120))
    appears(job.rank_log(0), "starts")
    time.sleep(8)  # what a controller has not saved yet, every few seconds, is lost with it
    own_cluster.signal("slurmctld", signal.SIGKILL)
    driver.until(handle, lambda seen: isinstance(seen, Unknown), 60)
    own_cluster.start_controller()
    driver.until(handle, lambda seen: isinstance(seen, Alive), 60)
    driver.wait(handle, 90)
    assert end_of(job).state == "succeeded"


def test_a_slurmd_that_is_killed_while_its_ranks_live(own_cluster: Cluster, tmp_path: Path) -> None:
    driver = Driver(own_cluster, tmp_path)
    job, handle = driver.submit(counting(100_000, restart={"lost_node": 2, "backoff": "0s"}))
    appears(job.rank_log(1), "starts")
    own_cluster.signal("n2", signal.SIGKILL)
    # SLURM declares the node lost, and puts the job back
    driver.until(handle, lambda seen: isinstance(seen, Alive) and not seen.running, 120)
    own_cluster.start_node("n2")
    appears(job.rank_log(0), "=== attempt 2", 120)
    appears(job.rank_log(1), "starts at 0\n=== attempt 2", 60)
    first = end_of(job)
    assert first.state == "failed"
    assert first.cause in ("lost_node", "preemption"), first
    driver.starter.stop(handle, kill=True)
    driver.wait(handle, 60)


def test_a_node_that_fails_every_job_at_once_is_left_out(own_cluster: Cluster, tmp_path: Path) -> None:
    driver = Driver(own_cluster, tmp_path)
    code = "import os, sys; sys.exit(os.environ['SLURMD_NODENAME'] == 'n1')"
    data = {"command": ["python", "-c", code], "resources": {"ranks": 1}, "slurm": {"nodes": 1},
            "restart": {"failure": 3, "backoff": "0s"}}  # fmt: skip
    job, handle = driver.submit(data)
    driver.wait(handle, 120)
    assert job.attempt_numbers() == [1, 2]
    assert (end_of(job, 1).bad_hosts, end_of(job, 2).state, end_of(job, 2).hosts) == (("n1",), "succeeded", ("n2",))


def test_the_time_limit_is_watched_by_our_own_clock_and_the_job_goes_on(own_cluster: Cluster, tmp_path: Path) -> None:
    driver = Driver(own_cluster, tmp_path)
    data = counting(60, resources={"time_limit": "25s"}, checkpoint={"signal": "USR1", "before_limit": "15s"},
                    restart={"time_limit": 5, "backoff": "0s"})  # fmt: skip
    job, handle = driver.submit(data)
    driver.wait(handle, 240)
    last = job.newest_attempt()
    found = AttemptEnd.read(last)
    assert found is not None
    assert found.state == "succeeded", driver.words(handle)
    assert last.number > 1
    assert any("saved at" in line for line in lines(job))
    assert end_of(job, 1).cause == "time_limit"


def test_preemption_puts_the_job_back_once(own_cluster: Cluster, tmp_path: Path) -> None:
    driver = Driver(own_cluster, tmp_path)
    job, handle = driver.submit(counting(20, slurm={"partition": "spare", "extra": ["--exclusive"]}, restart={"backoff": "0s"}))
    appears(job.rank_log(0), "starts")
    own_cluster.run("sbatch", "-N2", "-n8", "-o", "/dev/null", "--wrap=sleep 3")
    driver.wait(handle, 120)
    assert job.attempt_numbers() == [1, 2]
    assert (end_of(job, 1).cause, end_of(job, 2).state) == ("preemption", "succeeded")
    assert end_of(job, 1).reason == "SLURM preempted the job for one of higher priority"

"""What the starter says of jobs that SLURM suspends, that are killed, or that come after an idle time, on a test cluster."""

from __future__ import annotations

import os
import signal
import time

import pytest

from launcher.attempt.starter import Alive
from launcher.attempt.sweep import marked
from launcher.jobdir import words
from launcher.jobdir.claim import Claim
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import read_events
from launcher.jobdir.stop import Stop
from launcher.slurm import queue
from tests.slurm.cluster import wait_for
from tests.slurm.driver import Driver, appears
from tests.slurm.test_jobs import counting, driver  # noqa: F401 - a fixture
from tests.slurm.test_record import User, submitted, user  # noqa: F401 - a fixture

pytestmark = pytest.mark.soak


def test_a_job_after_an_idle_time_is_submitted_at_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(queue, "TIMEOUT", 0.5)
    driver.run(counting(1))
    time.sleep(2)  # longer than an answer is good for
    job, handle = driver.submit(counting(1))
    driver.wait(handle)
    assert AttemptEnd.read(job.attempt(1)) is not None


def test_a_suspended_job_has_a_note_until_it_goes_on_and_is_cancelled_at_once(driver: Driver) -> None:  # noqa: F811
    job, handle = driver.submit(counting(500))
    appears(job.rank_log(1), "starts")
    number = handle["job_id"]
    assert driver.cluster.run("scontrol", "suspend", number).returncode == 0
    seen = driver.until(handle, lambda seen: isinstance(seen, Alive) and seen.note)
    assert seen == Alive(f"job {number} in partition main: is suspended", running=True, note=f"job {number} is suspended")
    assert driver.cluster.run("scontrol", "resume", number).returncode == 0
    driver.until(handle, lambda seen: isinstance(seen, Alive) and seen.note is None)
    assert driver.cluster.run("scontrol", "suspend", number).returncode == 0
    job.cancel.touch()
    Stop(words.CANCELLED, "the user").write(job.attempt(1))
    driver.starter.stop(handle, kill=False)
    gone = driver.wait(handle, 45)
    end = AttemptEnd.read(job.attempt(1))
    assert gone.cause == "cancelled" if end is None else end.state == "cancelled"
    wait_for(lambda: not marked(job.id), "the end of all its processes", 30)


def test_a_killed_supervisor_is_said_to_have_been_killed(driver: Driver) -> None:  # noqa: F811
    job, handle = driver.submit(counting(500))
    appears(job.rank_log(1), "starts")
    claim = Claim.read(job.attempt(1))
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    gone = driver.wait(handle)
    assert gone.reason == f"what ran attempt 1, in job {handle['job_id']} of SLURM, was killed by SIGKILL"


def test_after_an_idle_time_the_daemon_submits_at_once_and_says_of_a_killed_supervisor_what_it_was(user: User) -> None:  # noqa: F811
    assert submitted(user, counting(1)).ended()["state"] == "succeeded"
    time.sleep(queue.TIMEOUT + 2)  # longer than an answer is good for
    job = submitted(user, counting(500, restart={"lost_node": 0}))
    appears(job.paths.rank_log(1), "starts", 60)
    assert "waiting" not in [event["event"] for event in read_events(job.paths.events)]
    claim = Claim.read(job.paths.attempt(1))
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    ended = job.ended(60)
    number = ended["slurm_job_id"]
    assert (ended["state"], ended["exit_code"]) == ("failed", 137)
    assert ended["reason"] == f"what ran attempt 1, in job {number} of SLURM, was killed by SIGKILL"

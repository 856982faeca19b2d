from __future__ import annotations

import pytest

from tests.slurm.driver import appears
from tests.slurm.test_record import User, counting, submitted, user  # noqa: F401 - a fixture


@pytest.mark.soak
def test_a_suspended_job_is_shown_as_such_while_it_lasts_and_cancelled_at_once(user: User) -> None:  # noqa: F811
    job = submitted(user, counting(500))
    appears(job.paths.rank_log(1), "starts", 120)
    number = job.number()
    job.until(lambda view: view["state"] == "running")
    assert user.cluster.run("scontrol", "suspend", number).returncode == 0
    assert job.until(lambda view: view["reason"])["state"] == "running"
    assert job.view["reason"] == f"job {number} is suspended"
    assert f"job {number} is suspended" in user.type("ls")
    assert user.cluster.run("scontrol", "resume", number).returncode == 0
    job.until(lambda view: view["state"] == "running" and view["reason"] is None)
    assert user.cluster.run("scontrol", "suspend", number).returncode == 0
    user.type("cancel", job.id)
    ended = job.ended(40)
    assert (ended["state"], ended["exit_code"]) == ("cancelled", 130)

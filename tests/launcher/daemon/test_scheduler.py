from __future__ import annotations

import pytest

from launcher.jobdir.end import AttemptEnd
from tests.launcher.daemon.kit import World


def test_one_query_an_interval_for_all_jobs_of_a_scheduler(world: World) -> None:
    slurm = {"backend": {"kind": "slurm"}}
    jobs = [world.submit(f"s{number}", **slurm) for number in range(20)]
    world.tick(1.0, times=45)
    assert {world.view(job).state for job in jobs} == {"starting"}
    assert world.slurm.looks == 3
    assert world.store.counts() == {"starting": 20}


def test_attempts_that_a_scheduler_made_by_itself_are_caught_up_with(world: World) -> None:
    job = world.submit(backend={"kind": "slurm"}, restart={"failure": 5})
    world.tick(20)
    pid = world.pid(job)
    world.end(job, 9, cause="preemption")
    for attempt in (2, 3):
        world.slurm.claim(world.paths(job), attempt, pid)
    AttemptEnd(2, "failed", "preemption", 9).write(world.paths(job).attempt(2))
    world.slurm.living.add(pid)
    world.tick(20)
    view = world.view(job)
    assert (view.state, view.attempt, view.attempts) == ("starting", 3, 2)
    world.mark(job)
    world.tick(20)
    assert world.view(job).state == "running"
    world.end(job)
    world.tick(20)
    view = world.view(job)
    assert (view.state, view.attempt, view.attempts) == ("succeeded", 3, 3)
    assert [end["attempt"] for end in world.store.ends(job)] == [1, 2, 3]


@pytest.mark.parametrize(("cause", "state", "code"), [("cancelled", "cancelled", 130), ("time_limit", "failed", 1)])
def test_a_schedulers_word_is_taken_where_the_attempt_left_none(world: World, cause: str, state: str, code: int) -> None:
    job = world.submit(backend={"kind": "slurm"})
    world.tick(20)
    world.vanish(job)
    world.slurm.word = (cause, "job 17 was ended by user root")
    world.tick(20)
    view = world.view(job)
    assert (view.state, view.exit_code) == (state, code)
    assert "job 17 was ended by user root" in (view.reason or "")
    assert world.swept == [], "its processes are on other hosts"

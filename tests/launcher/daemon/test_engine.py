from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest

from launcher.daemon import engine
from launcher.daemon.queue import Capacity
from launcher.daemon.record import RecordError
from launcher.errors import UsageError
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop
from launcher.plan.mpi import Mpirun
from tests.launcher.daemon.kit import FACTS, World


def test_a_job_goes_from_queued_to_succeeded(world: World) -> None:
    job = world.submit()
    assert (world.view(job).state, world.view(job).attempt) == ("queued", 0)
    world.tick()
    assert world.view(job).state == "starting"
    world.mark(job)
    world.tick()
    assert world.view(job).state == "running"
    world.end(job)
    world.tick(times=3)
    view = world.view(job)
    assert (view.state, view.exit_code, view.reason, view.attempt, view.attempts) == ("succeeded", 0, None, 1, 1)
    assert world.events(job) == ["queued", "starting", "running", "finished"]
    assert world.starter.started == [(job, 1)]


def test_a_failing_job_has_the_exit_code_and_words_of_its_end(world: World) -> None:
    job = world.submit()
    world.tick()
    world.end(job, 7)
    world.tick()
    view = world.view(job)
    assert (view.state, view.exit_code, view.reason) == ("failed", 7, "rank 0 ended with 7")


def test_an_end_counts_only_when_the_supervisor_is_gone(world: World) -> None:
    job = world.submit()
    world.tick()
    world.mark(job)
    pid = world.pid(job)
    world.end(job)
    world.starter.living.add(pid)
    world.tick(times=3)
    assert world.view(job).state == "running"
    world.starter.living.discard(pid)
    world.tick()
    assert world.view(job).state == "succeeded"


def test_restarts_follow_the_policy_and_their_back_off(world: World) -> None:
    job = world.submit(restart={"failure": 2, "backoff": "10s", "jitter": 0})
    world.tick()
    for attempt, wait in ((1, 10), (2, 20)):
        world.end(job, 9)
        world.tick(0)
        view = world.view(job)
        assert (view.state, view.attempts) == ("restarting", attempt)
        assert view.next_try == pytest.approx(world.clock.wall() + wait)
        world.clock.now += wait - 1
        world.tick(0)
        assert world.view(job).attempt == attempt
        world.clock.now += 2
        world.tick(0)
        assert (world.view(job).state, world.view(job).attempt) == ("starting", attempt + 1)
    world.end(job, 9)
    world.tick()
    view = world.view(job)
    assert (view.state, view.exit_code, view.attempts) == ("failed", 9, 3)
    assert view.reason is not None and "restart.failure allows 2" in view.reason
    assert world.starter.started == [(job, 1), (job, 2), (job, 3)]


@pytest.mark.parametrize("new_daemon", [False, True])
def test_a_clock_that_is_set_back_an_hour_delays_no_restart(world: World, new_daemon: bool) -> None:
    job = world.submit(restart={"failure": 1, "backoff": "10s", "jitter": 0})
    world.tick()
    world.end(job, 9)
    world.tick()
    world.clock.offset -= 3600
    if new_daemon:
        world.die()
    world.tick(0)
    world.clock.now += 12
    world.tick()
    assert (world.view(job).state, world.view(job).attempt) == ("starting", 2)


def test_cancelling_a_queued_job_ends_it_without_a_start(world: World) -> None:
    job = world.submit()
    assert world.requests.cancel(job).state == "cancelled"
    world.tick(times=3)
    assert (world.view(job).state, world.view(job).exit_code) == ("cancelled", 130)
    assert world.starter.started == []


def test_a_mark_in_the_job_directory_cancels_as_well(world: World) -> None:
    job = world.submit()
    world.paths(job).cancel.touch()
    world.tick(times=2)
    assert world.view(job).state == "cancelled"
    assert world.starter.started == []


def test_cancel_between_start_and_first_heartbeat_is_durable_and_idempotent(world: World) -> None:
    job = world.submit(restart={"failure": "unlimited", "preemption": "unlimited"})
    world.tick()
    assert world.view(job).state == "starting"
    world.requests.cancel(job)
    world.requests.cancel(job)
    world.die()
    world.tick()
    attempt = world.paths(job).attempt(1)
    stop = Stop.read(attempt)
    assert stop is not None and stop.cause == "cancelled", "the reason is written before the signal"
    assert world.starter.stopped == [(world.pid(job), False)]
    world.end(job, 143, cause="preemption")  # it could read neither the mark nor the reason
    world.tick(times=2)
    world.requests.cancel(job)
    world.tick()
    assert (world.view(job).state, world.view(job).exit_code) == ("cancelled", 130)
    assert world.events(job).count("cancel-requested") == world.events(job).count("finished") == 1


def test_a_supervisor_that_does_not_stop_is_killed_and_its_job_swept(world: World) -> None:
    job = world.submit()
    world.tick()
    world.requests.cancel(job)
    world.tick()
    pid = world.pid(job)
    world.clock.now += engine.KILL_AFTER
    world.tick()
    assert world.starter.stopped == [(pid, False), (pid, True)]
    world.vanish(job)
    world.tick()
    assert world.view(job).state == "cancelled"
    assert world.swept == [job]


def test_cancelling_between_two_attempts_ends_the_job(world: World) -> None:
    job = world.submit(restart={"failure": 5})
    world.tick()
    world.end(job, 3)
    world.tick()
    assert world.view(job).state == "restarting"
    assert world.requests.cancel(job).state == "cancelled"
    world.clock.now += 1000
    world.tick(times=3)
    assert world.view(job).attempt == 1


def test_final_states_are_final(world: World) -> None:
    job = world.submit()
    world.tick()
    world.end(job)
    world.tick(times=2)
    assert world.requests.cancel(job).state == "succeeded"
    with world.store.transaction() as record:
        assert record.change(job, state="failed", exit_code=1) is None
    world.tick(times=3)
    assert (world.view(job).state, world.view(job).exit_code) == ("succeeded", 0)


def test_a_dependency_is_waited_for_and_its_failure_is_the_end(world: World) -> None:
    first = world.submit("first")
    second = world.submit("second", depends_on=[first])
    third = world.submit("third", depends_on=[second])
    world.tick(times=2)
    assert (world.view(second).state, world.view(second).reason) == ("queued", f"waits for {first}")
    world.end(first)
    world.tick(times=2)
    assert world.view(second).state == "starting"
    world.end(second, 4)
    world.tick(times=2)
    view = world.view(third)
    assert (view.state, view.exit_code, view.reason) == ("failed", 1, f"it depends on {second}, which failed")
    with pytest.raises(UsageError, match="no job 'nowhere-"):
        world.submit("fourth", depends_on=["nowhere-20260101-000000-abcd"])


def test_gpus_are_given_out_and_come_back(tmp_path: Path) -> None:
    world = World(tmp_path, Capacity(cpus=8, gpus=("0", "1", "2")))
    jobs = [world.submit(f"g{number}", resources={"gpus_per_rank": 2}) for number in range(2)]
    world.tick(times=2)
    assert world.starter.environments[0]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert world.view(jobs[1]).reason == "waits for 2 GPUs; 1 of 3 are free"
    world.end(jobs[0])
    world.tick(times=2)
    assert world.view(jobs[1]).state == "starting"
    world.store.close()


HOSTS = {"ranks": 4, "hosts": ["n1:2", "n2:2"], "allow_root": True}
REMOTE = dataclasses.replace(FACTS, mpirun=Mpirun("/opt/mpi/bin/mpirun", "openmpi", (4, 1, 8), "a banner"))


@pytest.mark.parametrize(
    ("restart", "ranks", "without"), [({"min_ranks": 2}, 2, ("n2",)), ({}, 4, ())], ids=["fewer ranks", "all hosts again"]
)
def test_a_lost_node_is_left_out_where_enough_ranks_remain(
    world: World, restart: dict[str, object], ranks: int, without: tuple[str, ...]
) -> None:
    settings = {"lost_node": 1, "backoff": "1s", "jitter": 0, **restart}
    job = world.submit(host=REMOTE, resources=HOSTS, backend={"kind": "mpirun"}, restart=settings)
    world.tick()
    world.end(job, 1, cause="lost_node", bad_hosts=("n2",), reason="no sign of life from n2")
    world.tick()
    assert world.view(job).state == "restarting"
    assert "lost a node (no sign of life from n2)" in str(world.view(job).reason)
    world.clock.now += 2
    world.tick()
    plan = Plan.read(world.paths(job).attempt(2).plan)
    assert (plan.placement.ranks, plan.placement.excluded_hosts) == (ranks, without)
    assert {slots.name for slots in plan.placement.hosts} == {"n1", "n2"} - set(without)


def test_a_hang_is_restarted_by_its_own_budget(world: World) -> None:
    job = world.submit(restart={"hang": 1, "hang_after": "10m", "backoff": "1s", "jitter": 0})
    for attempt in (1, 2):
        world.tick(2)
        assert world.view(job).attempt == attempt
        world.end(job, 1, cause="hang", reason="no progress of the training for 10 min")
        world.tick(2)
    world.tick()
    view = world.view(job)
    assert (view.state, view.attempts) == ("failed", 2)
    assert "it hung 2 times, and restart.hang allows 1 restart" in str(view.reason)


def test_a_locked_record_refuses_a_submission_and_names_the_cause(world: World) -> None:
    world.store._connection.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(world.dirs.record, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordError, match=r"record\.sqlite is locked by another program"):
        world.submit("locked")
    other.execute("ROLLBACK")
    other.close()
    assert world.store.counts() == {}
    assert world.context.environments.kept() == [], "secrets are kept for jobs of the record alone"
    assert world.view(world.submit("free")).state == "queued"

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.daemon import crash, engine
from launcher.daemon.desk import ConflictError
from launcher.errors import UsageError
from launcher.outcome import AttemptEnd
from launcher.state import Submission
from launcher.stop import Stop
from launcher.store.database import RecordError
from launcher.store.lease import Holder, LeaseLostError, acquire
from tests.launcher.daemon.kit import World, job_directory


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
    assert world.desk.cancel(job).state == "cancelled"
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
    world.desk.cancel(job)
    world.desk.cancel(job)
    world.die()
    world.tick()
    attempt = world.paths(job).attempt(1)
    stop = Stop.read(attempt)
    assert stop is not None and stop.cause == "cancelled", "the reason is written before the signal"
    assert world.starter.stopped == [(world.pid(job), False)]
    world.end(job, 143, cause="preemption")  # it could read neither the mark nor the reason
    world.tick(times=2)
    world.desk.cancel(job)
    world.tick()
    assert (world.view(job).state, world.view(job).exit_code) == ("cancelled", 130)
    assert world.events(job).count("cancel-requested") == world.events(job).count("finished") == 1


def test_a_supervisor_that_does_not_stop_is_killed_and_its_job_swept(world: World) -> None:
    job = world.submit()
    world.tick()
    world.desk.cancel(job)
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
    assert world.desk.cancel(job).state == "cancelled"
    world.clock.now += 1000
    world.tick(times=3)
    assert world.view(job).attempt == 1


def test_final_states_are_final(world: World) -> None:
    job = world.submit()
    world.tick()
    world.end(job)
    world.tick(times=2)
    assert world.desk.cancel(job).state == "succeeded"
    with world.store.transaction() as record:
        assert record.change(job, state="failed", exit_code=1) is None
    world.tick(times=3)
    assert (world.view(job).state, world.view(job).exit_code) == ("succeeded", 0)


def test_unknown_never_ends_a_job_and_goes_back_to_what_it_was(world: World) -> None:
    job = world.submit()
    world.tick()
    world.mark(job)
    world.tick()
    world.starter.unknown = "the controller does not answer"
    world.tick(times=5)
    view = world.view(job)
    assert (view.state, view.reason) == ("unknown", "the controller does not answer")
    world.starter.unknown = None
    world.tick()
    assert (world.view(job).state, world.view(job).reason) == ("running", None)
    assert world.starter.started == [(job, 1)]


def test_a_start_whose_answer_was_lost_is_found_and_not_made_again(world: World) -> None:
    world.starter.lose_answers = True
    job = world.submit()
    world.tick()
    assert (world.view(job).state, world.view(job).reason) == ("starting", "socket timed out")
    world.starter.unknown = "socket timed out"
    world.clock.now += 60
    world.tick()
    assert world.view(job).state == "unknown"
    world.starter.unknown = None
    world.clock.now += 60
    world.tick()
    world.mark(job)
    world.tick()
    assert world.view(job).state == "running"
    assert world.starter.started == [(job, 1)]


def test_the_holder_of_the_claim_is_adopted_where_two_supervisors_were_started(world: World) -> None:
    world.starter.claims = False
    job = world.submit()
    world.tick()
    loser = world.pid(job)
    assert world.starter.claim(world.paths(job), 1, 555)
    world.starter.living = {555}
    world.tick()
    assert world.pid(job) == 555 != loser
    world.end(job)
    world.tick()
    assert world.view(job).state == "succeeded"
    assert world.starter.started == [(job, 1)]


@pytest.mark.parametrize(
    ("mark", "state", "code", "words"),
    [
        ({"exit_code": 0, "ended": 1.0}, "succeeded", 0, None),
        ({"exit_code": 6, "ended": 1.0}, "failed", 6, "exit code 6"),
        ({}, "failed", 1, "gone without a word"),
    ],
)
def test_a_lost_supervisor_is_judged_by_its_ranks(
    world: World, mark: dict[str, object], state: str, code: int, words: str
) -> None:
    job = world.submit()
    world.tick()
    world.mark(job, **mark)
    world.vanish(job)
    world.tick()
    view = world.view(job)
    assert (view.state, view.exit_code) == (state, code)
    assert (words in view.reason) if words else view.reason is None  # type: ignore[operator]
    assert world.swept == [job], "nothing of it is left"


def test_a_lost_supervisor_counts_as_a_lost_node(world: World) -> None:
    job = world.submit(restart={"lost_node": 1, "backoff": "1s"})
    world.tick()
    world.mark(job)
    world.vanish(job)
    world.tick()
    assert world.view(job).state == "restarting"


def test_what_ends_before_its_claim_was_not_started(world: World) -> None:
    world.starter.claims = False
    job = world.submit()
    world.tick()
    (world.paths(job).attempt(1).root / "supervisor.log").write_text("Traceback\nImportError: no such thing\n")
    world.vanish(job)
    world.tick()
    assert world.view(job).reason == "what should run attempt 1 ended before it began: ImportError: no such thing"


def test_a_refused_start_is_a_failure_with_its_words(world: World) -> None:
    world.starter.refuse = "no python there"
    job = world.submit(restart={"failure": 1, "backoff": "1s", "jitter": 0})
    world.tick()
    assert (world.view(job).state, world.view(job).attempts) == ("restarting", 1)
    world.clock.now += 2
    world.tick(times=2)
    view = world.view(job)
    assert (view.state, view.exit_code) == ("failed", 1)
    assert view.reason is not None and view.reason.startswith("no python there")


def test_a_removed_job_directory_ends_the_job_with_that_reason(world: World) -> None:
    running, queued = world.submit("running"), world.submit("queued", priority=-1)
    world.context.capacity = type(world.capacity)(cpus=1)
    world.tick()
    for job in (running, queued):
        shutil.rmtree(world.paths(job).root)
    world.vanish(running)
    world.tick(times=3)
    assert world.view(running).reason == f"its directory {world.view(running).dir} was removed while it ran"
    assert world.view(queued).state == "failed"
    assert world.view(queued).reason == f"{world.view(queued).dir} is missing"


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


def test_one_query_an_interval_for_all_jobs_of_a_scheduler(world: World) -> None:
    slurm = {"backend": {"kind": "slurm"}}
    jobs = [world.submit(f"s{number}", **slurm) for number in range(20)]
    world.tick(1.0, times=45)
    assert {world.view(job).state for job in jobs} == {"starting"}
    assert world.slurm.looks == 3
    assert world.store.counts() == {"starting": 20}


@pytest.mark.parametrize("step", [name for name in crash.STEPS if name.startswith(("start", "end", "close"))])
@pytest.mark.parametrize("claims", [True, False])
def test_a_crash_at_any_step_loses_nothing_and_starts_nothing_twice(
    world: World, step: str, claims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def passing(name: str) -> None:
        if name == armed and not crashed:
            crashed.append(name)
            raise Crash

    armed, crashed = step, []
    for module in ("starting", "ending"):
        monkeypatch.setattr(f"launcher.daemon.{module}.step", passing)
    job = world.submit(restart={"failure": 1, "backoff": "1s", "jitter": 0})
    for _ in range(12):
        world.starter.claims = claims or bool(crashed)
        try:
            world.tick(2)
        except Crash:
            world.die()
            continue
        present = world.store.get(job)
        assert present is not None
        if present.handle is not None and present.handle["pid"] in world.starter.living:
            if not world.paths(job).attempt(present.attempt).claim.exists():
                world.starter.claim(world.paths(job), present.attempt, present.handle["pid"])
            world.end(job, 5 if present.attempt == 1 else 0)
    assert crashed, "the step was passed"
    view = world.view(job)
    assert (view.state, view.exit_code, view.attempt, view.attempts) == ("succeeded", 0, 2, 2)
    assert world.starter.started == [(job, 1), (job, 2)]
    assert world.events(job).count("finished") == 1
    assert world.context.environments.kept() == []


def test_a_full_disk_starts_nothing_and_loses_nothing(world: World) -> None:
    job = world.submit()
    pages = world.store._connection.execute("PRAGMA page_count").fetchone()[0]
    world.store._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(RecordError, match="the disk is full"):
        for number in range(200):
            world.submit(f"more{number}")
    world.store._connection.execute("PRAGMA max_page_count=100000")
    world.tick(times=2)
    assert world.view(job).state == "starting"
    assert set(world.context.environments.kept()) >= {job}


def test_a_locked_record_stops_the_work_and_names_the_cause(world: World) -> None:
    import sqlite3

    job = world.submit()
    world.store._connection.execute("PRAGMA busy_timeout=50")
    other = sqlite3.connect(world.dirs.record, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordError, match=r"record\.sqlite is locked by another program"):
        world.tick()
    assert world.starter.started == []
    other.execute("ROLLBACK")
    other.close()
    world.tick()
    assert world.starter.started == [(job, 1)]


def test_a_daemon_that_lost_its_lease_does_nothing_more(world: World) -> None:
    world.submit()
    times = iter(range(0, 10_000, 30))
    other = Holder(host="elsewhere", boot="another")
    acquire(world.store._connection, other, shared=True, steady=lambda: float(next(times)), sleep=lambda _: None)
    with pytest.raises(LeaseLostError, match="taken over by the daemon on host elsewhere"):
        world.tick()
    assert world.starter.started == []
    with world.store._lock:
        world.store._connection.execute("UPDATE lease SET released = 1")


def test_a_retry_is_a_new_beginning_in_the_same_directory(world: World) -> None:
    job = world.submit(restart={"failure": 1, "backoff": "1s", "jitter": 0})
    for _ in range(2):
        world.tick(2)
        world.end(job, 3)
        world.tick(2)
    world.tick()
    assert (world.view(job).state, world.view(job).attempts) == ("failed", 2)
    assert world.desk.retry(job, {"NEW": "1"}).state == "queued"
    world.tick()
    assert world.view(job).attempt == 3
    assert world.starter.environments[-1]["NEW"] == "1"
    with pytest.raises(ConflictError, match="it is starting"):
        world.desk.retry(job, {})
    world.end(job, 3)
    world.tick()
    assert world.view(job).state == "restarting", "its budget is whole again"
    world.desk.cancel(job)
    world.tick()
    world.desk.retry(job, {})
    world.tick()
    world.end(job)
    world.tick(times=2)
    assert world.view(job).state == "succeeded"
    with pytest.raises(ConflictError, match="has succeeded"):
        world.desk.retry(job, {})


def test_the_environment_is_kept_for_this_user_alone_and_only_until_the_end(world: World) -> None:
    job = world.submit(environment={"TOKEN": "geheim", "ODD": "\udcff"})
    kept = world.dirs.environments / f"{job}.json"
    assert kept.stat().st_mode & 0o777 == 0o600
    world.tick()
    assert world.starter.environments == [{"TOKEN": "geheim", "ODD": "\udcff"}]
    world.end(job)
    world.tick(times=2)
    assert not kept.exists()
    written = [path for path in world.folder.rglob("*") if path.is_file()]
    assert not any(b"geheim" in path.read_bytes() for path in written)


def test_lost_secrets_are_the_reason_and_not_a_start_without_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    needs, plain = world.submit("needs", secrets=["TOKEN"]), world.submit("plain")
    for path in world.dirs.environments.iterdir():
        path.unlink()
    world.tick(times=2)
    assert world.view(needs).state == "failed"
    assert "`hvdgrab-launch retry" in (world.view(needs).reason or "")
    assert world.view(plain).state == "starting"
    assert "environment-lost" in world.events(plain)


def test_submitting_again_changes_nothing(world: World) -> None:
    job = world.submit()
    paths = world.paths(job)
    world.tick()
    view, new = world.desk.submit(Submission(job, str(paths.root), {}))
    assert (view.state, new) == ("starting", False)
    other = job_directory(world.folder / "others")
    shutil.copytree(paths.root, world.folder / "others" / job)
    with pytest.raises(ConflictError, match="is taken by the job in"):
        world.desk.submit(Submission(job, str(other.root.parent / job), {}))


@pytest.mark.parametrize("part", ["root", "attempts", "logs", "spec", "plan", "events", "cancel"])
def test_links_in_a_job_directory_are_not_followed(world: World, part: str) -> None:
    job = job_directory(world.folder / "jobs")
    path: Path = getattr(job, part)
    if part in ("events", "cancel"):
        path.write_text("")
    real = world.folder / "elsewhere"
    path.rename(real)
    path.symlink_to(real)
    with pytest.raises(UsageError, match="is a link, and links are not followed"):
        world.desk.submit(Submission(job.id, str(job.root), {}))


def test_a_plan_of_another_job_is_refused(world: World) -> None:
    job, other = job_directory(world.folder / "jobs"), job_directory(world.folder / "jobs", "other")
    shutil.copy(other.plan, job.plan)
    with pytest.raises(UsageError, match="is another job's"):
        world.desk.submit(Submission(job.id, str(job.root), {}))


def test_gpus_are_given_out_and_come_back(tmp_path: Path) -> None:
    from launcher.daemon.queue import Capacity

    world = World(tmp_path, Capacity(cpus=8, gpus=("0", "1", "2")))
    jobs = [world.submit(f"g{number}", resources={"gpus_per_rank": 2}) for number in range(2)]
    world.tick(times=2)
    assert world.starter.environments[0]["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert world.view(jobs[1]).reason == "waits for 2 GPUs; 1 of 3 are free"
    world.end(jobs[0])
    world.tick(times=2)
    assert world.view(jobs[1]).state == "starting"
    world.store.close()


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


def test_a_full_disk_under_a_job_directory_delays_its_start_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    job = world.submit()
    with monkeypatch.context() as patch:
        patch.setattr("launcher.daemon.starting.replace_text", full)
        world.tick(times=3)
        view = world.view(job)
        assert (view.state, view.attempt) == ("starting", 1)
        assert "plan.json: No space left on device" in (view.reason or "")
    world.clock.now += 60
    world.tick()
    assert (world.view(job).state, world.view(job).reason) == ("starting", None)
    assert world.starter.started == [(job, 1)]


def test_a_read_only_job_directory_is_the_end_and_the_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("launcher.daemon.starting.replace_text", refused)
    job = world.submit()
    world.tick(times=2)
    assert world.view(job).state == "failed"
    assert "plan.json: Read-only file system" in (world.view(job).reason or "")

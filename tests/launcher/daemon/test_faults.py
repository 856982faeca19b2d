from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.daemon.context import CRASH_STEPS
from launcher.daemon.lease import Holder, LeaseLostError, acquire
from launcher.daemon.queue import Capacity
from launcher.daemon.record import RecordError
from launcher.errors import UsageError
from launcher.host.files import replace_text
from tests.launcher.daemon.kit import World


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


def test_a_job_of_a_host_that_is_gone_says_what_to_do_and_can_be_given_up(world: World) -> None:
    job = world.submit()
    world.tick()
    attempt = world.paths(job).attempt(1)
    attempt.alive.touch()
    world.starter.unknown = "it was begun on host login1, which this host cannot ask"
    world.tick(times=2)
    assert world.view(job).reason == world.starter.unknown
    world.requests.cancel(job)
    world.clock.now += 500
    os.utime(attempt.alive, (5, 5))
    world.tick()
    world.clock.now += 500
    world.tick()
    assert world.view(job).state == "unknown", "it has shown life meanwhile"
    world.clock.now += 200
    world.tick(times=2)
    view = world.view(job)
    assert (view.state, view.exit_code) == ("cancelled", 130)
    assert "had shown no life for 10 min" in str(view.reason)
    assert attempt.end.exists(), "ranks that live all the same are told"
    assert world.events(job).count("finished") == 1


def test_silence_alone_ends_no_job(world: World) -> None:
    job = world.submit()
    world.tick()
    world.starter.unknown = "it was begun on host login1, which this host cannot ask"
    world.tick()
    world.clock.now += 10_000
    world.tick(times=3)
    assert world.view(job).state == "unknown"
    assert f"`hvdgrab-launch cancel {job}` gives it up" in str(world.view(job).reason)
    world.starter.unknown = None
    world.mark(job)
    world.tick()
    assert world.view(job).state == "running"


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
        ({}, "failed", 137, "gone without a word"),
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
    assert world.view(job).reason == "the supervisor of attempt 1 ended before it began: ImportError: no such thing"


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
    world.context.capacity = Capacity(cpus=1)
    world.tick()
    for job in (running, queued):
        shutil.rmtree(world.paths(job).root)
    world.vanish(running)
    world.tick(times=3)
    assert world.view(running).reason == f"its directory {world.view(running).dir} was removed while it ran"
    assert world.view(queued).state == "failed"
    assert world.view(queued).reason == f"{world.view(queued).dir} is missing"


@pytest.mark.parametrize("step", [name for name in CRASH_STEPS if name.startswith(("start", "end", "close"))])
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


def full_for(job: str) -> Callable[..., None]:
    """Writing that fails in one job's directory."""

    def write(path: Path, text: str, *, durable: bool = False) -> None:
        if job in str(path):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        replace_text(path, text, durable=durable)

    return write


def test_a_full_disk_under_a_job_directory_delays_its_start_and_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    job = world.submit()
    with monkeypatch.context() as patch:
        patch.setattr("launcher.jobdir.plan.replace_text", full)
        world.tick(times=3)
        view = world.view(job)
        assert (view.state, view.attempt) == ("starting", 1)
        assert "plan.json: No space left on device" in (view.reason or "")
        patch.setattr("launcher.jobdir.plan.replace_text", full_for(job))
        other = world.submit("other")
        world.tick(times=3)
        assert world.starter.started == [(other, 1)], "a job on another disk need not wait"
    world.clock.now += 60
    world.tick()
    assert (world.view(job).state, world.view(job).reason) == ("starting", None)
    assert world.starter.started == [(other, 1), (job, 1)]


def test_jobs_of_the_version_before_end_with_the_reason_as_their_plans_cannot_be_used(world: World) -> None:
    running, queued = world.submit("running", restart={"failure": 3}), world.submit("queued", depends_on=())
    flat = {"version": 2, "job_id": queued, "ranks": 1, "backend": "local"}
    world.paths(queued).plan.write_text(json.dumps(flat))
    world.tick(times=2)
    view = world.view(queued)
    assert (view.state, world.view(running).state) == ("failed", "starting")
    assert "was written by an earlier version of hvdgrab-launch" in (view.reason or "")
    world.paths(running).plan.write_text(json.dumps(flat))
    world.end(running, 1)
    world.tick(times=2)
    assert world.view(running).state == "failed"
    assert "rank 0 ended with 1; no other attempt can be made: " in (world.view(running).reason or "")
    before = world.view(running)
    with pytest.raises(UsageError, match="earlier version of hvdgrab-launch"):
        world.requests.retry(running, {})
    assert world.view(running) == before, "a job that cannot be started keeps its end"


def test_a_read_only_job_directory_is_the_end_and_the_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    job = world.submit()
    monkeypatch.setattr("launcher.jobdir.plan.replace_text", refused)
    world.tick(times=2)
    assert world.view(job).state == "failed"
    assert "plan.json: Read-only file system" in (world.view(job).reason or "")

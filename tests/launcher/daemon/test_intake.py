from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.daemon.http.messages import Submission
from launcher.daemon.requests import ConflictError
from launcher.errors import UsageError
from tests.launcher.daemon.kit import World, job_directory


def test_a_retry_is_a_new_beginning_in_the_same_directory(world: World) -> None:
    job = world.submit(restart={"failure": 1, "backoff": "1s", "jitter": 0})
    for _ in range(2):
        world.tick(2)
        world.end(job, 3)
        world.tick(2)
    world.tick()
    assert (world.view(job).state, world.view(job).attempts) == ("failed", 2)
    assert world.requests.retry(job, {"NEW": "1"}).state == "queued"
    world.tick()
    assert world.view(job).attempt == 3
    assert world.starter.environments[-1]["NEW"] == "1"
    with pytest.raises(ConflictError, match="it is starting"):
        world.requests.retry(job, {})
    world.end(job, 3)
    world.tick()
    assert world.view(job).state == "restarting", "its budget is whole again"
    world.requests.cancel(job)
    world.tick()
    world.requests.retry(job, {})
    world.tick()
    world.end(job)
    world.tick(times=2)
    assert world.view(job).state == "succeeded"
    with pytest.raises(ConflictError, match="has succeeded"):
        world.requests.retry(job, {})


def test_a_retry_without_its_directory_or_with_a_link_in_it_is_refused_at_once(world: World) -> None:
    gone, linked = world.submit("gone"), world.submit("linked")
    world.tick()
    for job in (gone, linked):
        world.end(job, 3)
    world.tick(times=2)
    real = world.folder / "elsewhere"
    world.paths(linked).logs.rename(real)
    world.paths(linked).logs.symlink_to(real)
    shutil.rmtree(world.paths(gone).root)
    with pytest.raises(UsageError, match=f"the directory of {gone} is gone.*submit the job again"):
        world.requests.retry(gone, {})
    with pytest.raises(UsageError, match="is a link, and links are not followed"):
        world.requests.retry(linked, {})
    assert {world.view(job).state for job in (gone, linked)} == {"failed"}
    assert world.context.environments.kept() == []


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


def test_what_a_killed_daemon_had_begun_to_keep_is_removed_by_the_next(world: World) -> None:
    kept = world.submit("kept")
    directory = world.context.dirs.environments
    (directory / f".{kept}.json.4711").write_text('{"TOKEN": "sec')
    (directory / "never-recorded.json").write_text("{}")
    world.requests.forget_orphans()
    assert [path.name for path in directory.iterdir()] == [f"{kept}.json"]


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
    view, new = world.requests.submit(Submission(job, str(paths.root), {}))
    assert (view.state, new) == ("starting", False)
    other = job_directory(world.folder / "others")
    shutil.copytree(paths.root, world.folder / "others" / job)
    with pytest.raises(ConflictError, match="is taken by the job in"):
        world.requests.submit(Submission(job, str(other.root.parent / job), {}))


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
        world.requests.submit(Submission(job.id, str(job.root), {}))


def test_a_plan_of_another_job_is_refused(world: World) -> None:
    job, other = job_directory(world.folder / "jobs"), job_directory(world.folder / "jobs", "other")
    shutil.copy(other.plan, job.plan)
    with pytest.raises(UsageError, match="is another job's"):
        world.requests.submit(Submission(job.id, str(job.root), {}))

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from launcher.attempt.rank.output import LogFile
from launcher.errors import UsageError
from launcher.host.files import replace_text
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import ID_PATTERN, JobPaths, jobs_root, list_jobs, new_id


def make(root: Path, *names: str) -> None:
    for name in names:
        JobPaths(root / name).create()


def test_ids_have_their_form_and_differ() -> None:
    ids = {new_id("a-b.c", now=0) for _ in range(50)}
    assert len(ids) > 40
    assert all(re.fullmatch(ID_PATTERN, one) for one in ids)


def test_every_file_lies_in_the_job_directory(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / "x")
    files = [job.spec, job.plan, job.events, job.metrics, job.report, job.backend_log, job.rank_log(3), job.cancel, job.finished]
    attempt = job.attempt(12)
    own = [attempt.claim, attempt.plan, attempt.rank_mark(12), attempt.progress, attempt.alive, attempt.stop, attempt.end]
    assert all(job.root in file.parents for file in files)
    assert all(attempt.root in file.parents for file in own)
    assert attempt.root == job.root / "attempts" / "0012"
    assert (job.rank_log(3).name, attempt.rank_mark(12).name) == ("rank-0003.log", "rank-0012.json")


def test_whatever_the_umask_nobody_else_puts_files_into_a_job_directory_or_writes_its_small_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        job = JobPaths(tmp_path / "x")
        job.create()
        job.attempt(1).create()
        replace_text(job.plan, "{}")
        EventLog(job).add("queued")
        LogFile(job.rank_log(0)).close()
    finally:
        os.umask(before)
    guarded = [job.root, job.logs, job.attempts, job.attempt(1).root, job.attempt(1).ranks, job.plan, job.events, job.rank_log(0)]
    assert {path.name: path.stat().st_mode & 0o022 for path in guarded} == {path.name: 0 for path in guarded}
    assert job.checkpoints.stat().st_mode & 0o777 == 0o777, "the training's own files are the user's business"


@pytest.mark.parametrize("name", ["plan", "events", "rank_log"])
def test_links_in_the_place_of_a_jobs_files_are_not_followed(tmp_path: Path, name: str) -> None:
    job = JobPaths(tmp_path / "x")
    job.create()
    target = tmp_path / "precious"
    target.write_text("mine")
    path = job.rank_log(0) if name == "rank_log" else getattr(job, name)
    path.symlink_to(target)
    if name == "plan":
        replace_text(path, "{}")
        assert not path.is_symlink()
    elif name == "events":
        events = EventLog(job)
        events.add("queued")
        assert events.error is not None
    else:
        with pytest.raises(OSError, match="symbolic links"):
            LogFile(path)
    assert target.read_text() == "mine"


def test_attempts_are_counted_by_their_directories(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / "x")
    assert (job.attempt_numbers(), job.newest_attempt().number) == ([], 1)
    job.create()
    for number in (2, 1, 10_001):
        job.attempt(number).create()
    (job.attempts / "junk").mkdir()
    assert (job.attempt_numbers(), job.newest_attempt().number) == ([1, 2, 10_001], 10_001)


def test_root_is_option_then_variable_then_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HVDGRAB_JOBS", raising=False)
    assert jobs_root(None) == tmp_path / "jobs"
    monkeypatch.setenv("HVDGRAB_JOBS", "/there")
    assert jobs_root(None) == Path("/there")
    assert jobs_root("here") == tmp_path / "here"


def test_jobs_are_listed_by_age(tmp_path: Path) -> None:
    first, second, other = "a-20250101-000000-0001", "a-20250102-000000-0002", "ab-20250101-120000-0003"
    make(tmp_path, second, first, other)
    assert [job.id for job in list_jobs(tmp_path)] == [first, other, second], "oldest first, whatever the name"


def test_links_and_foreign_directories_are_no_jobs(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "l-20250101-000000-0001").symlink_to(tmp_path / "elsewhere")
    assert list_jobs(tmp_path) == []
    assert list_jobs(tmp_path / "missing") == []


def test_a_directory_is_made_once(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / "jobs" / "x")
    job.create()
    assert job.logs.is_dir()
    assert job.attempts.is_dir()
    with pytest.raises(UsageError, match="cannot be made: File exists"):
        job.create()

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.cli.showing import slurm_text
from launcher.jobdir import claim
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog, read_events
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import AttemptPaths, JobPaths
from launcher.slurm.submission import Submission, job_of
from launcher.slurm.surroundings import NamingLog
from tests.launcher.cli.test_views import view


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    job = JobPaths(tmp_path / "demo")
    job.create()
    job.attempt(1).create()
    return job.attempt(1)


def test_a_job_outside_slurm_names_none(attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    claim.take(attempt)
    assert job_of(attempt) == (None, None)
    assert slurm_text(attempt.job, view("demo", ranks=4)) is None


def test_the_job_is_named_from_its_submission_on_and_its_nodes_once_they_are_known(attempt: AttemptPaths) -> None:
    Submission("token", "name", 1.0).write(attempt)
    assert slurm_text(attempt.job, view("demo", ranks=4)) is None
    Submission("token", "name", 1.0, job_id="16").write(attempt)
    assert slurm_text(attempt.job, view("demo", ranks=4)) == "job 16"
    for rank, host in enumerate(["n2", "n1", "n2", "n1"]):
        RankMark(rank, host, 1).write(attempt.rank_mark(rank))
    assert slurm_text(attempt.job, view("demo", ranks=4)) == "job 16 on n1, n2"
    AttemptEnd(1, "failed", "failure", 1, hosts=tuple(f"n{k}" for k in range(10))).write(attempt)
    assert slurm_text(attempt.job, view("demo", ranks=4)) == "job 16 on n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"


def test_the_cluster_is_named_where_the_user_named_any(attempt: AttemptPaths) -> None:
    Submission("token", "name", 1.0, clusters="east,west", job_id="7", cluster="west").write(attempt)
    assert slurm_text(attempt.job, view("demo", ranks=4)) == "job 7 of cluster west"


def test_what_slurm_itself_began_is_named_by_its_claim(attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "64")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "test")
    claim.take(attempt)
    assert job_of(attempt) == ("64", None)


def test_only_the_start_of_an_attempt_names_the_job(attempt: AttemptPaths) -> None:
    log = NamingLog(attempt.job, "64")
    log.add("started", attempt=1, pid=5)
    log.add("attempt-end", attempt=1)
    EventLog(attempt.job).add("started", attempt=2)
    assert [event.get("slurm_job_id") for event in read_events(attempt.job.events)] == ["64", None, None]

"""Jobs are given to the daemon wholly or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.submitting import hand_over, hand_over_all
from launcher.daemon.http.messages import Submission
from launcher.errors import UnreachableError, UsageError
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.plan.prepare import Prepared, prepare
from tests.launcher.cli.test_views import view

YAML = "name: j\ncommand: [python, -c, pass]\nresources: {ranks: 1}\n"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "j.yaml").write_text(YAML + "variants: {seed: [0, 1, 2]}\n")
    return prepare("j.yaml", [], "jobs")


class FakeClient:
    """A daemon that takes so many jobs, then answers with an error."""

    def __init__(self, takes: int = 99, error: BaseException | None = None) -> None:
        self.taken: list[Submission] = []
        self.cancelled: list[str] = []
        self._takes, self._error = takes, error

    def submit(self, submission: Submission) -> Any:
        assert JobPaths(Path(submission.dir)).plan.exists(), "the directory is written before"
        if len(self.taken) == self._takes:
            assert self._error is not None
            raise self._error
        self.taken.append(submission)
        return view("j", "queued", id=submission.id, dir=submission.dir, group=submission.group)

    def cancel(self, job_id: str) -> Any:
        self.cancelled.append(job_id)


def give(client: FakeClient, jobs: list[Prepared], **further: Any) -> Any:
    return hand_over_all(client, jobs, **further)  # type: ignore[arg-type]


def test_what_is_handed_over(jobs: list[Prepared], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2")
    client = FakeClient()
    views = give(client, jobs, depends_on=["first"], priority=5)
    assert [one.id for one in views] == [job.job.id for job in jobs]
    first = client.taken[0]
    assert (first.priority, first.depends_on, first.group) == (5, ("first",), jobs[0].plan.job.group)
    assert first.environment["API_TOKEN"] == "hunter2"
    assert "hunter2" not in repr(first) + jobs[0].job.plan.read_text()
    assert Plan.from_json(jobs[0].job.plan.read_text()).job.priority == 5


def test_a_refused_job_leaves_no_directory(jobs: list[Prepared]) -> None:
    client = FakeClient(0, UsageError("no"))
    environment: Mapping[str, str] = {}
    with pytest.raises(UsageError):
        hand_over(client, jobs[0], [], None, environment)  # type: ignore[arg-type]
    assert not jobs[0].job.root.exists()


def test_a_job_of_which_nobody_knows_whether_it_was_taken_is_cancelled(jobs: list[Prepared]) -> None:
    with pytest.raises(UnreachableError, match="was not started, and will not be: submit it again"):
        give(FakeClient(0, UnreachableError("gone")), jobs[:1])
    assert jobs[0].job.cancel.exists()


@pytest.mark.parametrize("error", [UsageError("no"), UnreachableError("gone"), KeyboardInterrupt()])
def test_a_group_is_taken_wholly_or_not_at_all(jobs: list[Prepared], error: BaseException) -> None:
    client = FakeClient(2, error)
    with pytest.raises(type(error)):
        give(client, jobs)
    given = [submission.id for submission in client.taken]
    assert client.cancelled == given == [job.job.id for job in jobs[:2]]
    assert all(job.job.cancel.exists() for job in jobs[:2])
    assert not jobs[2].job.root.exists() or jobs[2].job.cancel.exists()


def test_an_interrupt_that_was_held_back_takes_all_back(jobs: list[Prepared]) -> None:
    client = FakeClient()
    with pytest.raises(KeyboardInterrupt):
        give(client, jobs, interrupted=lambda: True)
    assert client.cancelled == [jobs[0].job.id]
    assert not jobs[1].job.root.exists()

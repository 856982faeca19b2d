"""Job directories are written wholly or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import UsageError
from launcher.jobdir.plan import Plan
from launcher.plan import prepare as submit
from launcher.plan.prepare import Prepared, prepare, write_directory
from tests.launcher.helpers import load_text

YAML = "name: j\ncommand: [python, -c, pass]\nresources: {ranks: 1}\n"


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Prepared]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "j.yaml").write_text(YAML + "variants: {seed: [0, 1, 2]}\n")
    return prepare("j.yaml", [], "jobs")


def test_variants_are_of_one_group_with_names_of_their_own(jobs: list[Prepared]) -> None:
    assert [job.spec.name for job in jobs] == ["j-seed-0", "j-seed-1", "j-seed-2"]
    assert len({job.job.id for job in jobs}) == 3
    (group,) = {job.plan.job.group for job in jobs}
    assert group is not None
    assert group.startswith("j-20")


def test_the_directory_holds_the_spec_and_the_plan_and_both_can_be_read_again(jobs: list[Prepared]) -> None:
    write_directory(jobs[0])
    job = jobs[0].job
    assert Plan.from_json(job.plan.read_text()) == jobs[0].plan
    assert load_text(job.spec.read_text(), "spec.yaml") == jobs[0].spec
    assert {path.name for path in job.root.iterdir()} == {"spec.yaml", "plan.json", "logs", "attempts", "checkpoints"}
    with pytest.raises(UsageError, match="cannot be made"):
        write_directory(jobs[0])


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_no_half_directory(
    jobs: list[Prepared], monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    calls = []

    def fail(path: Path, text: str, *, durable: bool = False) -> None:
        calls.append((path.name, durable))
        path.write_text(text)
        if len(calls) == 2:
            raise fault

    monkeypatch.setattr(submit, "replace_text", fail)
    monkeypatch.setattr("launcher.jobdir.plan.replace_text", fail)
    expected: Any = UsageError if isinstance(fault, OSError) else KeyboardInterrupt
    with pytest.raises(expected, match="No space left on device" if isinstance(fault, OSError) else None):
        write_directory(jobs[0])
    assert calls == [("spec.yaml", True), ("plan.json", True)]
    assert not jobs[0].job.root.exists()

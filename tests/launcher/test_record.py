from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.paths import JobPaths
from launcher.record import EventLog, own_identity, read_record


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    made = JobPaths(tmp_path / "demo-20250102-030405-00ff")
    made.create()
    return made


def note(job: JobPaths, *added: tuple[str, dict[str, Any]]) -> None:
    log = EventLog(job)
    for name, details in added:
        log.add(name, **details)


SUBMITTED = ("submitted", {"ranks": 2, "backend": "mpirun", **own_identity()})


def test_states_follow_the_events(job: JobPaths) -> None:
    assert read_record(job).state == "unknown"
    note(job, SUBMITTED)
    assert read_record(job).state == "starting"
    note(job, ("started", {}))
    assert (read_record(job).state, read_record(job).ranks, read_record(job).name) == ("running", 2, "demo")
    note(job, ("finished", {"state": "failed", "exit_code": 7, "reason": "why", "seconds": 1.5}))
    record = read_record(job)
    assert (record.state, record.exit_code, record.reason, record.seconds) == ("failed", 7, "why", 1.5)


def test_a_final_state_is_final(job: JobPaths) -> None:
    note(job, SUBMITTED, ("finished", {"state": "succeeded", "exit_code": 0}), ("finished", {"state": "failed", "exit_code": 1}))
    assert read_record(job).state == "succeeded"


@pytest.mark.parametrize("change", [{"pid_started": 1}, {"pid": 2**22 + 1}, {"pid": None}, {"host": "elsewhere"}])
def test_a_job_without_its_launcher_is_unknown_never_finished(job: JobPaths, change: dict[str, Any]) -> None:
    note(job, ("submitted", {**own_identity(), **change}), ("started", {}))
    assert (read_record(job).state, read_record(job).exit_code) == ("unknown", None)
    assert read_record(job).reason


def test_broken_lines_are_passed_over(job: JobPaths) -> None:
    note(job, SUBMITTED)
    with job.events.open("ab") as file:
        file.write(b'\xff\n[1]\n{"event": 3}\n{"event": "fin')
    assert read_record(job).state == "starting"


def test_a_record_that_cannot_be_written_is_noted_not_raised(job: JobPaths) -> None:
    log = EventLog(JobPaths(job.root / "gone"))
    log.add("submitted")
    assert isinstance(log.error, FileNotFoundError)

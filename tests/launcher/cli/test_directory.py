"""A job as its directory shows it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.cli.directory import view_of
from launcher.host.processes import own_identity
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths


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
    assert view_of(job).state == "unknown"
    note(job, SUBMITTED)
    assert view_of(job).state == "starting"
    note(job, ("started", {}))
    assert (view_of(job).state, view_of(job).ranks, view_of(job).name) == ("running", 2, "demo")
    note(job, ("finished", {"state": "failed", "exit_code": 7, "reason": "why", "seconds": 1.5}))
    record = view_of(job)
    assert (record.state, record.exit_code, record.reason, record.seconds) == ("failed", 7, "why", 1.5)


def test_a_final_state_is_final(job: JobPaths) -> None:
    note(job, SUBMITTED, ("finished", {"state": "succeeded", "exit_code": 0}), ("finished", {"state": "failed", "exit_code": 1}))
    assert view_of(job).state == "succeeded"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"pid": None}, "which process"), ({"host": "elsewhere"}, "on elsewhere"), ({"processes": "pid:[1]"}, "another container")],
)
def test_a_job_whose_command_cannot_be_looked_at_is_unknown_never_finished(
    job: JobPaths, change: dict[str, Any], words: str
) -> None:
    note(job, ("submitted", {**own_identity(), **change}), ("started", {}))
    assert (view_of(job).state, view_of(job).exit_code) == ("unknown", None)
    assert words in str(view_of(job).reason)


KILLED = ("submitted", {"ranks": 2, **own_identity(), "pid_started": 1})


def leave(job: JobPaths, *marks: RankMark) -> None:
    job.attempt(1).create()
    for mark in marks:
        mark.write(job.attempt(1).rank_mark(mark.rank))


def mark(rank: int, **changes: Any) -> RankMark:
    return RankMark(**{"rank": rank, "host": os.uname().nodename, "wrapper_pid": 2**22 - 1, "heartbeat": 50.0, **changes})


@pytest.mark.parametrize("change", [{"pid_started": 1}, {"pid": 2**22 + 1}])
def test_a_killed_command_that_has_left_nothing_is_a_failure_and_says_what_to_do(job: JobPaths, change: dict[str, Any]) -> None:
    note(job, ("submitted", {**own_identity(), **change}))
    record = view_of(job)
    assert (record.state, record.exit_code) == ("failed", 1)
    assert "before a rank had been started" in str(record.reason)
    assert f"hvdgrab-launch {job.spec}" in str(record.reason)


def test_a_killed_command_is_judged_by_what_its_ranks_and_its_last_attempt_left(job: JobPaths) -> None:
    note(job, KILLED, ("started", {}))
    leave(job, mark(0), mark(1, exit_code=143, ended=60.0, stopped=True, stop_cause="supervisor_gone"))
    record = view_of(job)
    assert (record.state, record.exit_code, record.finished) == ("failed", 137, 60.0)
    assert "gone without a word" in str(record.reason)
    leave(job, mark(1, exit_code=7, ended=55.0))
    assert str(view_of(job).reason).startswith(f"rank 1 on {os.uname().nodename} ended with exit code 7; the command")
    leave(job, mark(0, exit_code=0, ended=56.0), mark(1, exit_code=0, ended=57.0))
    assert (view_of(job).state, view_of(job).reason) == ("succeeded", None)
    AttemptEnd(1, "failed", "failure", 9, "rank 0 ended with 9", ended=58.0).write(job.attempt(1))
    record = view_of(job)
    assert (record.state, record.exit_code) == ("failed", 9)
    assert "so no other attempt followed" in str(record.reason)


def test_ranks_on_other_hosts_keep_the_state_open_until_they_have_been_silent_for_long(job: JobPaths) -> None:
    note(job, KILLED, ("started", {}))
    leave(job, mark(0, exit_code=143, ended=60.0, stopped=True), mark(1, host="n2"))
    record = view_of(job)
    assert (record.state, record.exit_code) == ("unknown", None)
    assert "its ranks on n2 end by themselves within 2 minutes" in str(record.reason)
    long_ago = time.time() - 121
    os.utime(job.attempt(1).rank_mark(1), (long_ago, long_ago))
    assert view_of(job).state == "failed"


def test_broken_lines_are_passed_over(job: JobPaths) -> None:
    note(job, SUBMITTED)
    with job.events.open("ab") as file:
        file.write(b'\xff\n[1]\n{"event": 3}\n{"event": "fin')
    assert view_of(job).state == "starting"


def test_a_record_that_cannot_be_written_is_noted_not_raised(job: JobPaths) -> None:
    log = EventLog(JobPaths(job.root / "gone"))
    log.add("submitted")
    assert isinstance(log.error, FileNotFoundError)

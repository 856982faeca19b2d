"""Supervisors on this host, and those of which only a claim from another host is known."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from launcher.attempt.starter import Alive, Gone, HeldByAnother, LocalStarter, Unknown
from launcher.host.files import as_text, create_once
from launcher.host.processes import own_identity
from launcher.jobdir.claim import Claim
from launcher.jobdir.paths import JobPaths


def claimed(folder: Path, **changes: object) -> JobPaths:
    job = JobPaths(folder / "demo-20250102-030405-00ff")
    job.create()
    job.attempt(1).create()
    claim = Claim(**{**own_identity(), "time": 1.0, **changes})  # type: ignore[arg-type]
    create_once(job.attempt(1).claim, as_text(dataclasses.asdict(claim)))
    return job


def test_what_a_claim_names_is_found_and_looked_at(tmp_path: Path) -> None:
    starter = LocalStarter()
    job = claimed(tmp_path)
    found = starter.find(job, 1)
    assert found is not None
    assert (found["pid"], starter.look({"a": found})["a"]) == (os.getpid(), Alive())
    gone = {**found, "pid_started": 1}
    assert starter.look({"a": gone})["a"] == HeldByAnother(found), "the one that has gone had lost the race for the claim"
    assert starter.look({"a": {name: gone[name] for name in ("kind", "host", "pid", "pid_started")}})["a"] == Gone()
    job.attempt(1).end.write_text("{}")
    assert starter.look({"a": gone})["a"] == Gone(), "the attempt has ended"
    job.attempt(1).end.unlink()
    job.attempt(1).claim.unlink()
    assert starter.look({"a": gone})["a"] == Gone(), "nobody else was started"
    starter.stop(gone, kill=True)  # another process has the number now: this one lives on


def test_a_process_of_another_host_is_known_by_its_claim_and_never_taken_for_gone_or_signalled(tmp_path: Path) -> None:
    starter = LocalStarter()
    found = starter.find(claimed(tmp_path, host="login1"), 1)
    assert found is not None
    assert (found["host"], found["pid"]) == ("login1", os.getpid())
    assert starter.look({"a": found})["a"] == Unknown("it was begun on host login1, which this host cannot ask")
    starter.stop(found, kill=True)

"""One attempt after the other: claims, limits, hangs, requests to stop, marks of the training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.jobdir import words
from launcher.jobdir.claim import EXIT_CLAIMED, Claim, take
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.marks import read_marks
from launcher.jobdir.plan import Plan
from launcher.jobdir.stop import Stop
from tests.launcher.attempts import end_of, job_of, python, run, supervise, until, with_token
from tests.launcher.helpers import CHECKOUT, clean_environment

WAITING = "import time; print('up', flush=True); time.sleep(60)"
SAVING = """
import os, signal, sys, time
def save(*_):
    open(os.environ["HVDGRAB_JOB_DIR"] + "/saved", "a").write("x")
    time.sleep(0.3)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("up", flush=True)
time.sleep(60)
"""


def test_an_attempt_has_one_supervisor_ever(tmp_path: Path) -> None:
    job = job_of(tmp_path, python("print('once', flush=True); import time; time.sleep(0.5)"), ranks=1, kind="local")
    starters = [supervise(job) for _ in range(3)]
    for one in starters:
        one.communicate(timeout=60)
    assert sorted(one.returncode for one in starters) == [0, EXIT_CLAIMED, EXIT_CLAIMED]
    assert job.rank_log(0).read_bytes() == b"once\n"
    again = supervise(job)
    again.communicate(timeout=60)
    assert again.returncode == EXIT_CLAIMED
    assert job.rank_log(0).read_bytes() == b"once\n"


@pytest.mark.parametrize("links", [True, False])
def test_a_claim_is_whole_and_made_once(tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    job = job_of(tmp_path, ["x"], ranks=1, kind="local")
    assert take(job.attempt(2))
    assert not take(job.attempt(2))
    claim = Claim.read(job.attempt(2))
    assert claim is not None
    assert claim.pid == os.getpid()
    assert [path.name for path in job.attempt(2).root.iterdir() if path.is_file() and path.name != ".reserve"] == ["claim.json"]


def test_a_later_attempt_appends_to_the_logs_and_fences_the_earlier_one(tmp_path: Path) -> None:
    code = "import os, time; print('attempt', os.environ['HVDGRAB_ATTEMPT'], flush=True); time.sleep(60 if {} else 0)"
    job = job_of(tmp_path, python(code.format("os.environ['HVDGRAB_ATTEMPT'] == '1'")), ranks=1, kind="local")
    first = supervise(job)
    until(lambda: job.rank_log(0).exists() and b"attempt 1" in job.rank_log(0).read_bytes(), "the start")
    second = run(job, 2)
    assert (second.attempt, second.state) == (2, "succeeded")
    ended = end_of(job, first)
    assert ended.state == "failed"
    lines = job.rank_log(0).read_text().splitlines()
    assert lines[0] == "attempt 1"
    assert lines[1].startswith("=== attempt 2, ")
    assert lines[2] == "attempt 2"
    done = subprocess.run(
        [sys.executable, "-m", "launcher.attempt.rank.wrapper", str(job.root), "1"],
        cwd=CHECKOUT, env=clean_environment(), capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_CLAIMED, "a rank of an earlier attempt is not started any more"
    assert job.rank_log(0).read_text().splitlines() == lines


def test_the_time_limit_holds_by_the_supervisors_clock_and_by_the_ranks_own(tmp_path: Path) -> None:
    job = job_of(tmp_path, python(WAITING), resources={"time_limit": "1s"})
    end = run(job)
    assert (end.state, end.cause, end.exit_code) == ("failed", "time_limit", 124)
    assert "time limit of 1 s" in (end.reason or "")
    alone = subprocess.run(
        [sys.executable, "-m", "launcher.attempt.rank.wrapper", str(job.root), "2"],
        cwd=CHECKOUT, env=clean_environment(), capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert alone.returncode == 143
    mark = read_marks(job.attempt(2), 1)[0]
    assert mark is None, "an attempt that nobody has made has no place for marks"


@pytest.mark.parametrize("how", ["preemption", "time limit"])
def test_ranks_are_told_to_save_their_state_before_they_are_ended(tmp_path: Path, how: str) -> None:
    limit = {"time_limit": "3s"} if how == "time limit" else {}
    job = job_of(tmp_path, python(SAVING), resources=limit, checkpoint={"signal": "USR1", "before_limit": "2s"})
    process = supervise(job)
    until(lambda: all(job.rank_log(rank).exists() for rank in (0, 1)), "the start")
    until(lambda: all(job.rank_log(rank).read_bytes() for rank in (0, 1)), "the start")
    if how == "preemption":
        process.send_signal(signal.SIGTERM)
    end = end_of(job, process)
    assert (end.state, end.cause) == ("failed", how.replace(" ", "_"))
    assert (job.root / "saved").read_text() == "xx", "each rank once"
    assert all(mark is not None and mark.exit_code == 0 for mark in read_marks(job.attempt(1), 2))


def test_a_signal_that_nobody_waits_for_ends_nothing(tmp_path: Path) -> None:
    code = WAITING.replace("time.sleep(60)", "time.sleep(1.2)")
    limits = {"resources": {"time_limit": "30s"}, "checkpoint": {"signal": "USR1", "before_limit": "29500ms"}}
    job = job_of(tmp_path, python(code), ranks=1, kind="local", **limits)
    end = run(job)
    assert end.state == "failed", "told to save, it ended by itself: whether it is done is not known"
    assert end.cause == "time_limit"
    mark = read_marks(job.attempt(1), 1)[0]
    assert mark is not None
    assert mark.exit_code == 0


def test_a_training_hangs_when_its_progress_stands_still(tmp_path: Path) -> None:
    code = "import os, time; open(os.environ['HVDGRAB_PROGRESS'], 'w').close(); time.sleep(60)"
    job = job_of(tmp_path, python(code), ranks=1, kind="local", restart={"hang_after": "1500ms"})
    end = run(job)
    assert end.cause == "hang"
    assert "no progress of the training for 2 s" in (end.reason or "")


def test_a_wrapper_that_shows_no_life_is_a_hang(tmp_path: Path) -> None:
    job = job_of(tmp_path, python(WAITING))
    process = supervise(job, env={"HVDGRAB_HEARTBEAT_SECONDS": "0.1"})
    until(lambda: all(mark is not None for mark in read_marks(job.attempt(1), 2)), "the start")
    mark = read_marks(job.attempt(1), 2)[1]
    assert mark is not None
    os.kill(mark.wrapper_pid, signal.SIGSTOP)
    end = end_of(job, process)
    assert (end.state, end.cause) == ("failed", "hang")
    assert "rank 1 on" in (end.reason or "")
    assert with_token(job.id) == []


def test_a_request_to_cancel_needs_no_signal(tmp_path: Path) -> None:
    job = job_of(tmp_path, python(WAITING), ranks=1, kind="local")
    process = supervise(job)
    until(job.rank_log(0).exists, "the start")
    job.cancel.touch()
    end = end_of(job, process)
    assert (end.state, end.cause, end.exit_code) == ("cancelled", "cancelled", 130)
    later = run(job, 2)
    assert (later.state, later.reason) == ("cancelled", "stopped before a rank was started")
    assert not job.rank_log(0).read_bytes().count(b"=== attempt 2")


def test_success_needs_the_trainings_own_mark(tmp_path: Path) -> None:
    code = "import os; os.environ['HVDGRAB_ATTEMPT'] == '2' and open(os.environ['HVDGRAB_FINISHED'], 'w').close()"
    job = job_of(tmp_path, python(code), ranks=1, kind="local", checkpoint={"require_finished": True})
    assert (run(job).state, run(job, 2).state) == ("failed", "succeeded")


def test_a_requests_cause_is_the_cause_of_the_end(tmp_path: Path) -> None:
    job = job_of(tmp_path, python(WAITING), ranks=1, kind="local")
    process = supervise(job)
    until(job.rank_log(0).exists, "the start")
    Stop(words.LOST_NODE, "a test", "its node is away", bad_hosts=("n7",)).write(job.attempt(1))
    end = end_of(job, process)
    assert (end.cause, end.reason, end.bad_hosts) == ("lost_node", "its node is away", ("n7",))


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    job = job_of(tmp_path, ["/no/such/program"], ranks=1, kind="local")
    end = run(job)
    assert (end.state, end.exit_code, end.first_failing_rank) == ("failed", 127, 0)
    plan = Plan.read(job.plan)
    job.attempt(2).create()
    replace(plan, job=replace(plan.job, attempt=2), argv=("/no/such/mpirun",)).write(job.attempt(2).plan)
    end = run(job, 2)
    assert (end.state, end.cause) == ("failed", "not_started")
    assert "/no/such/mpirun could not be started" in (end.reason or "")


def test_a_job_that_is_not_there(tmp_path: Path) -> None:
    for arguments in ([str(tmp_path), "1"], [str(tmp_path / "x"), "0"], []):
        done = subprocess.run(
            [sys.executable, "-m", "launcher.supervise", *arguments],
            cwd=CHECKOUT, env=clean_environment(), capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr


def test_several_attempts_leave_their_ends(tmp_path: Path) -> None:
    job = job_of(tmp_path, python("raise SystemExit(300)"), ranks=1, kind="local")
    assert [run(job, number).exit_code for number in (1, 2)] == [44, 44]
    ends = [AttemptEnd.read(job.attempt(number)) for number in job.attempt_numbers()]
    assert [end.attempt for end in ends if end is not None] == [1, 2]

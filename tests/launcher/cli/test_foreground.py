"""Signals to a job in the foreground: before it starts, between its attempts, and while its report is made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launcher.cli.directory import view_of
from launcher.cli.foreground import interrupted_within
from launcher.host.signals import SignalBox
from launcher.jobdir.paths import list_jobs
from tests.launcher.attempts import QUICK, until
from tests.launcher.helpers import CHECKOUT, clean_environment, command_line, events, launch


def start(folder: Path, data: dict[str, object], **env: str) -> subprocess.Popen[str]:
    file = folder / "job.yaml"
    file.write_text(json.dumps({"resources": {"ranks": 1}, **data}))
    return subprocess.Popen(
        command_line(str(file), "--foreground", "--json", "--jobs-dir", str(folder / "jobs")),
        cwd=folder, env=clean_environment({**QUICK, **env}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


INTERRUPTER = """
import os, signal, sys
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
if "INTERRUPT_AT" in os.environ:
    sys.meta_path.insert(0, Interrupter())
"""


@pytest.mark.parametrize("module", ["launcher.cli.app", "typer", "launcher.plan.planning", "launcher.cli.foreground"])
def test_an_interrupt_while_the_command_still_starts_shows_no_traceback(tmp_path: Path, module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    process = start(tmp_path, {"command": ["sleep", "60"]}, PYTHONPATH=f"{tmp_path}:{CHECKOUT}", INTERRUPT_AT=module)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert list_jobs(tmp_path / "jobs") == []


def test_term_while_the_report_is_made_hides_no_verdict(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import sys, time\nif 'hvdgrab.report' in sys.orig_argv:\n"
        "    open(sys.orig_argv[-1] + '/making', 'w').close()\n    time.sleep(60)\n"
    )
    code = "import os; open(os.environ['HVDGRAB_JOB_DIR'] + '/metrics.jsonl', 'w').write('{}'); raise SystemExit(7)"
    process = start(tmp_path, {"command": ["python", "-c", code]}, PYTHONPATH=f"{slow}:{CHECKOUT}")
    until(lambda: list(tmp_path.glob("jobs/*/making")), "the making of the report")
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 7
    assert json.loads(stdout)["exit_code"] == 7
    assert "the report was interrupted" in stderr
    assert "exit code 7" in stderr


COUNTER = """
import os, sys
path = os.environ["HVDGRAB_JOB_DIR"] + "/count"
count = int(open(path).read()) if os.path.exists(path) else 0
while count < 5:
    count += 1
    open(path, "w").write(str(count))
    open(os.environ["HVDGRAB_PROGRESS"], "w").close()
    if count in (2, 4):
        sys.exit(3)
print("done at", count, "in attempt", os.environ["HVDGRAB_ATTEMPT"])
"""


def test_attempts_follow_as_the_restart_settings_say(tmp_path: Path) -> None:
    restart = {"failure": 2, "backoff": "100ms"}
    ran = launch(tmp_path, {"command": ["python", "-c", COUNTER], "restart": restart}, env=QUICK)
    assert (ran.code, ran.result["state"]) == (0, "succeeded"), ran.stderr
    assert ran.log().decode().splitlines()[-1] == "done at 5 in attempt 3"
    assert ran.job.attempt_numbers() == [1, 2, 3]
    assert [event["exit_code"] for event in events(ran.job) if event["event"] == "attempt-end"] == [3, 3, 0]


def test_a_clock_that_is_set_back_an_hour_delays_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr("launcher.cli.foreground.time.time", lambda: now - 3600)
    begun = time.monotonic()
    with SignalBox() as signals:
        assert interrupted_within(0.2, signals) is False
        assert time.monotonic() - begun >= 0.2
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted_within(60, signals) is True


def test_an_interrupt_between_two_attempts_ends_the_job(tmp_path: Path) -> None:
    process = start(tmp_path, {"command": ["false"], "restart": {"failure": 5, "backoff": "1m"}})
    until(lambda: any((job.attempt(1).end).exists() for job in list_jobs(tmp_path / "jobs")), "the first attempt's end")
    (job,) = list_jobs(tmp_path / "jobs")
    until(lambda: any(event["event"] == "restarting" for event in events(job)), "the wait")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(stdout)["state"]) == (130, "cancelled")
    assert view_of(job).state == "cancelled"

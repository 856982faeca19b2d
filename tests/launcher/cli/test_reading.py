"""Commands that only read: what they make of records, logs and events."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import hvdgrab
from launcher.attempt.report import ReportInterruptedError
from launcher.cli import daemon, find, logs
from launcher.cli.find import Listed, why_absent
from launcher.cli.main import main
from launcher.cli.texts import failure_lines, painted, table
from launcher.daemon.http.client import OfflineRecord
from launcher.daemon.http.messages import DaemonStatus, JobView
from launcher.daemon.lease import Holder
from launcher.errors import UnreachableError, UsageError
from launcher.host.processes import own_identity
from launcher.jobdir.events import EventLog
from launcher.jobdir.marks import RankMark
from launcher.jobdir.paths import JobPaths
from tests.launcher.cli.test_views import view
from tests.launcher.helpers import plan
from tests.real import need

LOG = b"one\n=== attempt 2, 2026-11-29 21:00:00, node-1 ===\ntwo\ntwo\n=== attempt 4, 2026-11-29 22:00:00, node-1 ===\nfour\n"


@pytest.fixture
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STATE", "RUNTIME", "JOBS"):
        monkeypatch.setenv(f"HVDGRAB_{name}", str(tmp_path / name.lower()))
    return tmp_path


def record_of(monkeypatch: pytest.MonkeyPatch, owner: str | None, *views: JobView, holder: Holder | None = None) -> None:
    monkeypatch.setattr(find, "read_record_offline", lambda: OfflineRecord(views, owner, holder))


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (None, ["no daemon has run yet", "as does the next job"]),
        (Holder(released=True), ["was stopped, and jobs that ran went on", "daemon start` starts one"]),
        (Holder(pid=2**22 - 1), ["process 4194303, ended without a word", "starts the next one, which finds them"]),
        (Holder(boot="another"), ["ended without a word (it was killed, or the host was started again)"]),
        (Holder(host="login2", boot="x"), ["the daemon on login2: give commands there", "the lease of 60 s has run out"]),
        (Holder(processes="pid:[1]"), ["in another container"]),
        (Holder(), [f"process {os.getpid()}, runs, but cannot be reached", "set HVDGRAB_RUNTIME", f"`kill {os.getpid()}`"]),
    ],
)
def test_why_no_daemon_answers_is_one_sentence_with_what_to_do(holder: Holder | None, words: list[str]) -> None:
    text = why_absent(OfflineRecord((), None, holder), Holder())
    assert all(word in text for word in words), text
    assert "\n" not in text


def test_another_version_of_the_daemon_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status = DaemonStatus("here", 1, "0.0.1", 0.0, "/s", "/r", "/l", "/p", {"queued": 2, "failed": 1}, None, 2, 0, 1, 0, None)
    daemon._print(status, as_json=False)
    out = capsys.readouterr().out
    assert "`hvdgrab-launch daemon restart` brings the daemon to it; jobs go on" in out
    assert "2 not ended (2 queued); 1 ended (1 failed)" in out
    daemon._print(replace(status, version=hvdgrab.__version__), as_json=False)
    assert "daemon restart" not in capsys.readouterr().out


def test_the_host_that_owns_the_record_is_named(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_of(monkeypatch, "login2", view("a"), holder=Holder(host="login2"))
    assert main(["ls", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("hvdgrab-launch: the record belongs to the daemon on login2: give commands there; if that host is ")
    assert err.endswith("once the lease of 60 s has run out. Shown is what the record holds\n")
    assert json.loads(out)[0]["name"] == "a"


def test_nothing_is_said_where_all_that_is_recorded_has_ended(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record_of(monkeypatch, socket.gethostname(), view("a", "succeeded", exit_code=0))
    assert main(["ls"]) == 0
    assert capsys.readouterr().err == ""


def test_a_daemon_that_is_sick_is_said_and_the_record_read(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def sick(start: bool) -> None:
        raise UnreachableError("the daemon has not answered for 30 s; its log: /x")

    monkeypatch.setattr(find.Client, "connect", sick)
    record_of(monkeypatch, None, view("a", "succeeded", exit_code=0))
    assert main(["show", "a", "--json"]) == 0
    assert "has not answered for 30 s" in capsys.readouterr().err
    assert main(["show", "b"]) == 2
    assert capsys.readouterr().err.count("has not answered for 30 s") == 1


def foreground_job(root: Path, job_id: str) -> JobPaths:
    job = JobPaths(root / "jobs" / job_id)
    job.create()
    EventLog(job).add("submitted", ranks=2, backend="mpirun", **own_identity())
    return job


def test_jobs_of_the_record_and_of_the_directory_stand_in_one_list_each_once(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    foreground_job(no_daemon, "x-20250102-030405-00ff")
    foreground_job(no_daemon, view("a").id)
    record_of(monkeypatch, None, view("a", "failed", exit_code=4))
    assert main(["ls", "--json"]) == 0
    jobs = {job["name"]: (job["state"], job["recorded"]) for job in json.loads(capsys.readouterr().out)}
    assert jobs == {"a": ("failed", True), "x": ("starting", False)}
    assert main(["ls", "--state", "failed,queued", "--json"]) == 0
    assert [job["name"] for job in json.loads(capsys.readouterr().out)] == ["a"]
    assert main(["ls", "--group", "g", "--state", "queued"]) == 0
    assert capsys.readouterr().out.startswith("no jobs of that kind")


def test_a_row_says_what_is_special(no_daemon: Path) -> None:
    def note(**changes: Any) -> str:
        return find.row(Listed(view("a", **changes)))[-1]

    assert note(owner=socket.gethostname()) == ""
    assert note(owner="login2", reason="waits\nfor\x1b[2J slots") == "by login2; waits for slots"
    beside = Listed(JobPaths(no_daemon / "jobs" / "x-20250102-030405-00ff"))
    assert find.row(beside)[-1] == "not in this record; nobody has taken it in"
    assert note(state="restarting", next_try=1.0, owner="") == "next attempt now"
    assert find.row(Listed(view("a", seconds=3700.0, exit_code=0, ranks=4)))[2:7] == ("0", "1", "4", "-", "1 h 1 min")


def test_a_job_that_another_record_holds_is_told_from_one_that_ran_in_the_foreground(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    foreground_job(no_daemon, "here-20250102-030405-00ff")
    taken, planned = (JobPaths(no_daemon / "jobs" / f"{name}-20250102-030405-00ff") for name in ("taken", "planned"))
    for job in (taken, planned):
        job.create()
    EventLog(taken).add("queued", ranks=3, backend="local")
    plan("command: x\nresources: {ranks: 5, oversubscribe: true}").write(planned.plan)
    record_of(monkeypatch, None)
    assert main(["ls"]) == 0
    cells = {line.split("-")[0]: re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()[1:]}
    assert cells["here"][-1] == "foreground"
    assert cells["taken"][4] == "3" and cells["taken"][5].startswith("20")
    assert cells["taken"][-1] == "not in this record; taken in by the daemon of another HVDGRAB_STATE"
    assert cells["planned"][4] == "5" and cells["planned"][-1] == "not in this record; nobody has taken it in"


def test_a_job_whose_plan_an_earlier_version_wrote_is_shown(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobPaths(no_daemon / "jobs" / "old-20250102-030405-00ff")
    job.create()
    EventLog(job).add("queued", ranks=3, backend="local")
    job.plan.write_text('{"version": 2, "job_id": "old", "ranks": 3}')
    job.rank_log(0).write_text("hello\n")
    record_of(monkeypatch, None)
    for arguments in (["ls"], ["show", job.id], ["logs", job.id]):
        assert main(arguments) == 0, arguments
    assert "hello" in capsys.readouterr().out


def test_colours_are_for_terminals_and_touch_the_state_alone() -> None:
    heading, line = table([("ID", "STATE", "NOTE"), ("failed-1", "failed", "failed")])
    assert heading == "ID        STATE   NOTE"
    assert painted(line, "failed") == "failed-1  \x1b[31mfailed\x1b[0m  failed"
    assert painted(line, "queued") == line


@pytest.mark.parametrize(("attempt", "text"), [(1, b"one\n"), (2, b"two\ntwo\n"), (4, b"four\n")])
def test_the_part_of_an_attempt(attempt: int, text: bytes) -> None:
    assert logs.section(LOG, attempt) == text


def test_an_attempt_that_wrote_nothing_is_named_with_those_that_did() -> None:
    with pytest.raises(UsageError, match="attempt 3 of j has written nothing here; there are: 1, 2, 4"):
        logs.section(LOG, 3, "j")
    assert logs.section(b"x\nno === attempt 2, 2026-11-29 21:00:00, h ===\n", 1).endswith(b"h ===\n"), "only whole lines separate"


def test_a_log_of_a_foreground_job_and_what_started_it(no_daemon: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = foreground_job(no_daemon, "x-20250102-030405-00ff")
    job.rank_log(1).write_bytes(LOG)
    job.backend_log.write_bytes(b"mpirun says\n")
    assert main(["logs", "x", "--rank", "1", "--attempt", "2", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["rank"], found["lines"]) == (1, ["two", "two"])
    assert main(["logs", "x", "--backend"]) == 0
    assert capfd.readouterr().out == "mpirun says\n"
    assert main(["logs", "x"]) == 2
    assert "rank 0 of x-20250102-030405-00ff has written nothing (starting)" in capfd.readouterr().err
    assert main(["logs", "x", "-f", "--json"]) == 2


def test_an_interrupted_report_is_an_interrupted_command(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = foreground_job(no_daemon, "x-20250102-030405-00ff")
    job.metrics.write_text("{}\n")

    def interrupted(*_: Any, **__: Any) -> Path:
        raise ReportInterruptedError("the report was interrupted")

    monkeypatch.setattr("launcher.attempt.report.make", interrupted)
    assert main(["report", "x"]) == 130
    assert "interrupted; what runs goes on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (b"one\n=== attempt 2, 2026-11-29 21:00:00, node-1 ===\ntwo\n", ["two"]),
        (b"one\n=== attempt 2, 2026-11-29 21:00:00, node-1 ===\n", []),
        (b"", []),
    ],
)
def test_the_last_lines_of_a_failed_rank_are_those_of_its_last_attempt(tmp_path: Path, log: bytes, lines: list[str]) -> None:
    job = JobPaths(tmp_path / "x-20250102-030405-00ff")
    job.create()
    job.rank_log(1).write_bytes(log)
    first, *shown = failure_lines(job, RankMark(1, "here", 7, exit_code=3))
    assert shown == [*lines, "---"]
    assert first.startswith("--- rank 1 failed first; " + ("its last lines" if lines else "it has printed nothing"))


def test_an_event_is_one_line_without_control_characters() -> None:
    line = logs.line({"time": 0, "event": "started", "argv": ["x"], "pid": 3, "reason": "two\nwords\x1b[2J", "empty": None})
    assert line.endswith('started      pid=3 reason="two\\nwords\\u001b[2J"')
    assert "\n" not in line


def test_times_of_events_are_for_people_and_have_a_zone_for_programs(
    no_daemon: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    job = foreground_job(no_daemon, "x-20250102-030405-00ff")
    EventLog(job).add("restarting", at=1_800_000_000.25, attempt=1_800_000_000)
    EventLog(job).add("attempt-end", started=1_800_000_000.5, ended=1_800_000_100.5, seconds=100.0)
    assert main(["events", "x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith('restarting   at="2027-01-15 10:00:00" attempt=1800000000')
    assert lines[2].endswith('started="2027-01-15 10:00:00" ended="2027-01-15 10:01:40" seconds="1 min 40 s"')
    assert not any(re.search(r"\d{10}\.", line) for line in lines)
    assert main(["events", "x", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found[1]["at"], found[1]["attempt"]) == ("2027-01-15T10:00:00.250+02:00", 1_800_000_000)
    assert all(datetime.fromisoformat(event["time"]).utcoffset() is not None for event in found)
    monkeypatch.undo()
    time.tzset()


def test_the_unit_names_this_installation_and_survives_odd_paths(no_daemon: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDGRAB_STATE", "/a b/100%/$x")
    lines = daemon.unit_text().splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    assert shlex.split(start.removeprefix("ExecStart=")) == [sys.executable, "-m", "launcher", "daemon", "run"]
    assert 'Environment="HVDGRAB_STATE=/a b/100%%/$$x"' in lines
    assert "KillMode=process" in lines


@pytest.mark.parametrize("folder", ["state", "a b/100%/$x"])
def test_systemd_takes_the_unit(no_daemon: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which("systemd-analyze") or ""
    need("systemd-analyze", bool(program))
    monkeypatch.setenv("HVDGRAB_STATE", str(no_daemon / folder))
    file = no_daemon / "hvdgrab-launch.service"
    file.write_text(daemon.unit_text())
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(no_daemon)}
    done = subprocess.run([program, "verify", "--user", str(file)], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, str(file) in done.stderr) == (0, False), done.stderr
    assert main(["daemon", "unit", "--json"]) == 0


def test_the_schema_is_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert "resources" in json.loads(capsys.readouterr().out)["properties"]

"""Jobs through the real command and a real daemon."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from launcher.attempt.sweep import marked
from launcher.daemon.http.client import Client
from launcher.jobdir.events import read_events
from launcher.jobdir.paths import JobPaths
from tests.launcher.cli.home import Home, eventually

QUICK = "print('hello')"
SLEEP = "import time; print('up', flush=True); time.sleep(60)"
METRICS = (
    "import json, os; line = dict(epoch=0, epochs=1, order='rr', train_loss=0.5, herding_l2_vs_random=0.8, seconds=1.0)\n"
    "open(os.environ['HVDGRAB_JOB_DIR'] + '/metrics.jsonl', 'w').write(json.dumps(line) + chr(10))\n"
)


def until(gate: Path) -> str:
    """A program that waits for a file."""
    return f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)"


def test_a_job_is_followed_to_its_end_and_its_code_is_the_commands(home: Home) -> None:
    done = home.run(home.python("followed", "print('x' * 3); raise SystemExit(4)"))
    assert done.returncode == 4
    assert "\x1b" not in done.stdout
    assert re.search(r"rank 0 failed first; its last lines .*:\nxxx\n---\n", done.stdout)
    assert "failed after" in done.stdout
    assert "reason: rank 0 on" in done.stdout
    assert "  hvdgrab-launch retry followed-" in done.stdout
    shown = home.call("show", "followed").stdout
    assert "xxx" in shown
    assert re.search(r"^exit code +4$", shown, re.MULTILINE)


def test_json_is_one_document_with_what_programs_need(home: Home) -> None:
    found = home.data(home.python("document", QUICK))
    assert (found["name"], found["state"], found["exit_code"], found["ranks"]) == ("document", "succeeded", 0, 1)
    assert Path(found["dir"]).name == found["id"]
    for command in ("show", "logs", "events", "wait", "cancel"):
        assert found["id"] in json.dumps(home.data(command, "document"))
    assert found["id"] in json.dumps(home.data("ls"))
    assert home.data("daemon", "status")["pid"] == home.data("daemon", "start")["pid"] == home.pid()
    assert home.data("logs", "document")["lines"] == ["hello"]
    assert "finished     state=succeeded" in home.call("events", "document", "-f").stdout.splitlines()[-1]


def test_a_detached_job_is_named_by_id_name_and_beginning(home: Home) -> None:
    done = home.run(home.python("detached", QUICK), "--detach")
    assert done.returncode == 0
    job_id = done.stdout.partition(":")[0]
    for command in ("logs -f", "show", "wait", "cancel"):
        assert f"  hvdgrab-launch {command} {job_id}" in done.stdout
    assert home.call("wait", job_id[:-2]).returncode == 0
    assert home.call("logs", "detached").stdout == "hello\n"
    assert home.call("show", "detachet").stderr.endswith("no job 'detachet'; did you mean 'detached'?\n")
    assert [job["id"] for job in home.data("ls", "--state", "succeeded") if job["name"] == "detached"] == [job_id]


def test_an_interrupt_leaves_the_job_running_and_says_how_to_come_back(home: Home) -> None:
    process = home.start(home.python("left", SLEEP), "--json")
    job_id = home.running("left")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"{job_id} goes on" in err
    assert f"hvdgrab-launch logs -f {job_id}" in err
    assert f"hvdgrab-launch cancel {job_id}" in err
    assert json.loads(out)["id"] == job_id
    assert home.client.job(job_id).state == "running"
    cancelled = home.call("cancel", "left")
    assert (cancelled.returncode, marked(job_id)) == (0, [])
    assert ": cancelled" in cancelled.stdout
    again = home.call("cancel", job_id)
    assert (again.returncode, again.stdout) == (0, f"{job_id}: had ended before: cancelled\n")
    assert home.call("wait", job_id).returncode == 130


def test_logs_are_followed_while_the_job_runs(home: Home) -> None:
    gate = home.folder / "gate"
    home.detached("chatty", f"print('first', flush=True)\n{until(gate)}\nprint('second')")
    process = home.start("logs", "-f", "chatty")
    assert process.stdout is not None
    assert process.stdout.readline() == "first\n"
    gate.touch()
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("second\n", 0)


def test_attempts_have_their_own_part_of_the_logs_and_a_line_in_show(home: Home) -> None:
    code = "import os; n = os.environ['HVDGRAB_ATTEMPT']; print('try', n); raise SystemExit(0 if n == '2' else 3)"
    restart = {"failure": 1, "backoff": "100ms"}
    done = home.run(home.python("again", code, restart=restart))
    assert (done.returncode, "2 attempts" in done.stdout) == (0, True)
    assert home.call("logs", "again", "--attempt", "1").stdout == "try 1\n"
    assert home.call("logs", "again", "--attempt", "2").stdout == "try 2\n"
    wrong = home.call("logs", "again", "--attempt", "3")
    assert (wrong.returncode, "there are: 1, 2" in wrong.stderr) == (2, True)
    shown = home.call("show", "again").stdout
    assert "1  failed after" in shown
    assert "2  succeeded after" in shown
    names = [event["event"] for event in home.data("events", "again")]
    assert names.count("starting") == 2


def test_a_failed_job_is_tried_again_in_its_directory(home: Home) -> None:
    mark = home.folder / "mark"
    failed = home.data(home.python("fixed", f"import os; raise SystemExit(0 if os.path.exists({str(mark)!r}) else 5)"), code=5)
    mark.touch()
    done = home.call("retry", "fixed")
    assert done.returncode == 0
    assert f"hvdgrab-launch logs -f {failed['id']}" in done.stdout
    assert home.data("wait", failed["id"])["attempts"] == 2
    again = home.call("retry", "fixed", "--json")
    assert (again.returncode, json.loads(again.stdout)["exit_code"]) == (2, 2)
    assert again.stderr.count(failed["id"]) == 1
    assert "has succeeded; only jobs that failed" in again.stderr


def test_variants_are_one_group(home: Home) -> None:
    code = METRICS + "raise SystemExit(6 if 'rr' in os.environ['HVDGRAB_GRAB'] else 0)"
    done = home.run(home.python("swept", code, variants={"order": ["rr", "shuffle-once"]}))
    assert done.returncode == 6
    assert "2 jobs: 1 failed, 1 succeeded" in done.stdout
    assert "epoch 1/1  loss 0.5000" in done.stdout
    shown = home.data("show", "swept")
    assert [job["exit_code"] for job in shown] == [6, 0]
    group = shown[0]["group"]
    assert home.call("wait", group).returncode == 6
    assert len(home.data("ls", "--group", group)) == 2
    assert home.call("cancel", "swept").stdout.count("had ended before") == 2
    text = (Path(shown[0]["dir"]) / "comparison.html").read_text()
    assert all(job["name"] in text for job in shown), "the variants are compared"


def test_a_group_is_cancelled_as_one_and_its_json_names_all(home: Home) -> None:
    found = home.data(home.python("many", SLEEP, variants={"seed": [0, 1, 2]}), "--detach")
    assert (found["name"], found["state"], found["exit_code"], len(found["jobs"])) == ("many", "running", None, 3)
    done = home.call("cancel", found["id"])
    assert (done.returncode, done.stdout.count(": cancelled")) == (0, 3)
    assert not any(marked(job["id"]) for job in found["jobs"])


def test_depends_on_names_the_newest_job(home: Home) -> None:
    first = home.detached("first", "import time; time.sleep(1); print(1)")
    second = home.data(home.python("second", QUICK, depends_on=["first"]))
    assert second["depends_on"] == [first["id"]]
    assert second["state"] == "succeeded"
    assert home.client.job(first["id"]).finished < second["started"]  # type: ignore[operator]
    before = set(home.jobs.iterdir())
    done = home.run(home.python("third", QUICK, depends_on=["firts"]))
    assert (done.returncode, done.stdout) == (2, "")
    assert "depends_on: no job 'firts'; did you mean 'first'?" in done.stderr
    assert set(home.jobs.iterdir()) == before


def test_the_priority_of_the_command_line_counts(home: Home) -> None:
    found = home.data(home.python("urgent", QUICK, priority=3), "--priority", "7", "--detach")
    assert home.client.job(found["id"]).priority == 7
    home.client.wait(found["id"])


def test_secrets_are_in_no_file_when_the_job_has_ended(home: Home) -> None:
    value = "hunter2-and-more"
    file = home.python("quiet", "import os; print(os.environ['API_TOKEN'])", secrets=["API_TOKEN"])
    done = home.run(file, "--json", env={"API_TOKEN": value})
    assert done.returncode == 0
    assert JobPaths(Path(json.loads(done.stdout)["dir"])).rank_log(0).read_bytes() == b"***\n"
    files = [path for folder in (home.dirs.state, home.dirs.runtime, home.jobs) for path in folder.rglob("*") if path.is_file()]
    assert not any(value.encode() in path.read_bytes() for path in files)
    assert value not in done.stdout + done.stderr + home.call("show", "quiet", "--json").stdout


def test_a_report_of_what_was_measured(home: Home) -> None:
    home.detached("idle", QUICK)
    found = home.detached("measured", METRICS)
    assert home.call("wait", "idle", "measured").returncode == 0
    made = Path(found["dir"]) / "report.html"
    assert home.data("show", "measured")["report"] == str(made), "it is there at the end, although nobody has asked for it"
    made.unlink()
    report = home.data("report", "measured", "idle")
    assert report["report"] == found["dir"] + "/report.html"
    assert [job["id"] for job in report["jobs"]] == [found["id"]], "the other one has measured nothing"
    assert home.data("show", "measured")["report"] == report["report"]
    done = home.call("report", "idle")
    assert (done.returncode, "nothing was measured yet" in done.stderr) == (2, True)


def test_ls_and_show_ask_the_daemon_once_on_one_connection(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    job = home.detached("once", QUICK)
    asked: list[str] = []
    opened: list[Client] = []
    ask, connect = Client._ask, Client._open
    monkeypatch.setattr(Client, "_ask", lambda self, method, path, *more: asked.append(path) or ask(self, method, path, *more))
    monkeypatch.setattr(Client, "_open", lambda self: opened.append(self) or connect(self))
    for words, path in (("ls",), "/v1/jobs?"), (("show", "onc"), "/v1/jobs?beginning=onc"), (("show", job["id"]), None):
        asked.clear()
        opened.clear()
        assert home.call(*words).returncode == 0
        assert asked == [path or f"/v1/jobs?beginning={job['id']}"]
        assert len(opened) == 1


def test_a_foreground_job_stands_beside_the_others(home: Home) -> None:
    assert home.run(home.python("here", QUICK), "--foreground").returncode == 0
    (listed,) = [job for job in home.data("ls") if job["name"] == "here"]
    assert listed["recorded"] is False
    assert home.data("show", "here").items() >= listed.items(), "one view of a job"
    assert "foreground" in next(line for line in home.call("ls").stdout.splitlines() if line.startswith("here-"))
    done = home.run(home.python("after", QUICK, depends_on=["here"]), "--foreground")
    assert (done.returncode, "leave out --foreground" in done.stderr) == (2, True)
    assert home.call("retry", "here").returncode == 2


def test_a_foreground_job_can_be_cancelled_from_elsewhere(home: Home) -> None:
    process = home.start(home.python("elsewhere", SLEEP), "--foreground", "--json")
    eventually(lambda: any(log.read_bytes() for log in home.jobs.glob("elsewhere-*/logs/rank-0000.log")))
    done = home.call("cancel", "elsewhere")
    out, _ = process.communicate(timeout=60)
    assert (done.returncode, process.returncode, json.loads(out)["state"]) == (0, 130, "cancelled")


def test_variants_in_the_foreground_run_one_after_another(home: Home) -> None:
    code = "import os; print(os.environ['HVDGRAB_GRAB']); raise SystemExit(7 if '1' in os.environ['HVDGRAB_GRAB'] else 0)"
    done = home.run(home.python("inrow", code, variants={"seed": [1, 2]}), "--foreground", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 7
    assert [job["exit_code"] for job in found] == [7, 0]
    events = [read_events(JobPaths(Path(job["dir"])).events) for job in found]
    assert all(first[-1]["time"] <= second[0]["time"] for first, second in itertools.pairwise(events))


def test_a_daemon_that_is_killed_while_a_job_is_followed_changes_nothing(own_home: Home) -> None:
    gate = own_home.folder / "gate"
    process = own_home.start(own_home.python("orphan", f"{until(gate)}\nraise SystemExit(9)"), "--json")
    job_id = own_home.running("orphan")
    waiting = own_home.start("wait", job_id)
    eventually(lambda: b"wait" in Path(f"/proc/{waiting.pid}/cmdline").read_bytes())
    time.sleep(1)
    os.kill(own_home.pid(), signal.SIGKILL)
    threading.Timer(1.0, gate.touch).start()
    out, err = process.communicate(timeout=90)
    waited = waiting.communicate(timeout=90)
    assert (waiting.returncode, "failed after" in waited[0]) == (9, True), waited
    assert process.returncode == 9, err
    found = json.loads(out)
    assert (found["id"], found["state"], found["attempts"]) == (job_id, "failed", 1)
    assert "trying to reach the daemon again" in err

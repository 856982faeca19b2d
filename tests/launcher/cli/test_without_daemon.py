"""What works, and what is said, while no daemon answers; and submissions that are broken off."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from functools import partialmethod

import pytest

from launcher.attempt.sweep import marked
from launcher.daemon.http.client import Client
from launcher.host.processes import start_ticks
from tests.launcher.cli.home import Home, eventually, processes_of

QUICK = "print('hello')"
SLEEP = "import time; print('up', flush=True); time.sleep(60)"


def test_reading_works_while_the_daemon_is_down_and_says_so(own_home: Home) -> None:
    assert own_home.run(own_home.python("done", QUICK)).returncode == 0
    left = own_home.detached("left", SLEEP)
    own_home.until(left["id"], lambda view: view.state == "running")
    assert own_home.call("daemon", "stop").stdout.startswith("stopped; running jobs go on")
    assert own_home.call("daemon", "stop").stdout.startswith("nothing to stop: no daemon runs: the last one")
    status = own_home.call("daemon", "status")
    assert (status.returncode, "no daemon runs" in status.stderr) == (3, True)
    listed = own_home.call("ls")
    assert (listed.returncode, "Shown is what the record holds" in listed.stderr) == (0, True)
    assert "left-" in listed.stdout
    assert own_home.call("show", "left").returncode == 0
    assert own_home.call("logs", "done").stdout == "hello\n"
    assert own_home.call("events", "done").returncode == 0
    assert len(processes_of(own_home.dirs)) >= 2, "the job goes on, and none of these commands has started a daemon"
    shutil.rmtree(next(own_home.jobs.glob("done-*")))
    assert "(it is gone)" in own_home.call("show", "done").stdout
    assert "is not there" in own_home.call("events", "done").stderr
    assert "is gone, " in own_home.call("logs", "done").stderr
    assert own_home.run("cancel", "left").returncode == 0
    assert marked(left["id"]) == []
    assert own_home.data("daemon", "status")["running"] is True, "cancel has started one"


def test_a_killed_a_hanging_and_a_restarted_daemon_are_told_apart(own_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no daemon has run yet" in own_home.call("daemon", "status").stderr
    assert own_home.run("daemon", "start").returncode == 0
    job = own_home.detached("stays", SLEEP)
    own_home.until(job["id"], lambda view: view.state == "running")
    first = own_home.pid()
    done = own_home.run("daemon", "restart", "--json")
    assert (done.returncode, json.loads(done.stdout)["running"]) == (0, True)
    second = own_home.pid()
    assert second != first
    assert own_home.client.job(job["id"]).state == "running", "restarting the daemon touches no job"
    os.kill(second, signal.SIGSTOP)
    try:
        monkeypatch.setattr("launcher.daemon.http.client.Client._ask", partialmethod(Client._ask, seconds=0.5))
        for command in ("status", "stop"):
            hanging = own_home.call("daemon", command)
            assert hanging.returncode == 3
            assert f"has not answered for 0 s; its log: {own_home.dirs.log}; if it stays so, `kill -9 {second}`" in hanging.stderr
    finally:
        os.kill(second, signal.SIGKILL)
    eventually(lambda: start_ticks(second) is None)
    killed = own_home.call("daemon", "status")
    assert (killed.returncode, f"process {second}, ended without a word" in killed.stderr) == (3, True)
    assert "1 had not ended" in killed.stdout
    assert own_home.data("daemon", "status", code=3)["reason"] in killed.stderr
    assert f"process {second}, ended without a word" in own_home.call("ls").stderr
    assert own_home.run("cancel", "stays").returncode == 0


def test_a_daemon_that_cannot_start_is_exit_code_3_and_leaves_nothing(own_home: Home) -> None:
    own_home.dirs.runtime.mkdir(mode=0o700)
    own_home.dirs.runtime.chmod(0o755)
    file = own_home.python("never", QUICK)
    done = own_home.run(file)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"chmod 700 {own_home.dirs.runtime}" in done.stderr
    assert not own_home.jobs.exists()
    listed = own_home.call("ls")
    assert (listed.returncode, "chmod 700" in listed.stderr) == (0, True), "reading goes on, and says what is wrong"
    assert own_home.run(file, "--foreground").returncode == 0


def test_a_foreground_job_whose_command_was_killed_is_shown_as_it_is(own_home: Home) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = own_home.start(own_home.python("here", code), "--foreground", env={"HVDGRAB_GRACE_SECONDS": "4"})
    eventually(lambda: any(log.read_bytes() for log in own_home.jobs.glob("here-*/logs/rank-0000.log")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    found = own_home.data("show", "here")
    assert (found["state"], found["exit_code"]) == ("unknown", None)
    assert f"process {process.pid}) is gone" in found["reason"]
    assert f"hvdgrab-launch cancel {found['id']}` ends them" in found["reason"]
    assert own_home.data("ls")[0]["state"] == "unknown"
    done = own_home.run("cancel", "here", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["state"], marked(found["id"])) == (0, "failed", []), done.stderr
    found = own_home.data("show", "here")
    assert (found["state"], found["exit_code"]) == ("failed", 137)
    assert own_home.call("wait", "here").returncode == 137
    assert own_home.call("cancel", "here").stdout.endswith("had ended before: failed\n")


def test_waiting_for_a_foreground_job_whose_command_was_killed_ends_with_its_end(own_home: Home) -> None:
    process = own_home.start(own_home.python("here", SLEEP), "--foreground")
    eventually(lambda: any(log.read_bytes() for log in own_home.jobs.glob("here-*/logs/rank-0000.log")))
    waiting = own_home.start("wait", "here", "--json")
    eventually(lambda: (own_home.dirs.runtime / "daemon.sock").exists())
    time.sleep(1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    out, err = waiting.communicate(timeout=60)
    assert (waiting.returncode, json.loads(out)["state"]) == (137, "failed"), err


def test_an_interrupt_before_the_id_is_known_leaves_nothing(own_home: Home) -> None:
    first = json.loads(own_home.run(own_home.python("before", QUICK), "--json").stdout)
    daemon = own_home.pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        process = own_home.start(own_home.python("broken-off", SLEEP))
        eventually(lambda: list(own_home.jobs.glob("broken-off-*/plan.json")))
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    finally:
        os.kill(daemon, signal.SIGCONT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, "nothing was started" in err) == (130, True)
    eventually(lambda: all(view.final for view in own_home.client.jobs()))
    states = {view.name: view.state for view in own_home.client.jobs()}
    assert states.pop("before") == "succeeded"
    assert set(states.values()) <= {"cancelled"}
    assert not any(marked(path.name) for path in own_home.jobs.iterdir())
    assert first["state"] == "succeeded"


def test_two_interrupts_do_not_wait_for_a_daemon_that_hangs(own_home: Home) -> None:
    own_home.run(own_home.python("before", QUICK))
    daemon = own_home.pid()
    os.kill(daemon, signal.SIGSTOP)
    try:
        process = own_home.start(own_home.python("impatient", SLEEP))
        eventually(lambda: list(own_home.jobs.glob("impatient-*/plan.json")))
        (job,) = own_home.jobs.glob("impatient-*")
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert process.returncode == 130, err
    assert not job.exists() or (job / "cancel").exists()
    time.sleep(1)  # the daemon may still find the request that nobody waits for
    eventually(lambda: all(view.final for view in own_home.client.jobs()))
    assert {view.state for view in own_home.client.jobs(name="impatient")} <= {"cancelled"}
    assert marked(job.name) == []

"""Other programs are asked with bounds, and nothing of them stays."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.host import ssh
from launcher.host.processes import start_ticks
from launcher.host.program import Answer, run


def test_what_a_program_prints_and_how_it_ends() -> None:
    answer = run(["sh", "-c", "cat; echo no >&2; exit 3"], stdin="given")
    assert answer == Answer(3, "given", "no\n")
    assert not answer.ok
    assert (answer.complaint, answer.fault) == ("no", "ended with 3: no")
    assert run(["true"]).complaint == "exit code 0 and no message"


def test_a_program_that_is_not_there_and_one_that_cannot_be_run(tmp_path: Path) -> None:
    assert run(["/no/such/program"]) == Answer(None, "", "cannot be run: No such file or directory", missing=True)
    (tmp_path / "text").write_text("x")
    answer = run([tmp_path / "text"])
    assert (answer.code, answer.missing, answer.fault) == (None, False, "cannot be run: Permission denied")


@pytest.mark.parametrize("interrupted", [None, threading.Event()], ids=["plain", "interruptible"])
def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path, interrupted: threading.Event | None) -> None:
    begun = time.monotonic()
    answer = run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"], seconds=0.5, interrupted=interrupted)
    assert (answer.code, answer.stderr) == (None, "no answer within 0 s")
    assert time.monotonic() - begun < 10
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 10
    while start_ticks(child) is not None and time.monotonic() < until:
        time.sleep(0.02)
    assert start_ticks(child) is None


def test_an_interrupted_program_is_not_waited_for() -> None:
    enough = threading.Event()
    threading.Timer(0.2, enough.set).start()
    begun = time.monotonic()
    assert run(["sleep", "60"], interrupted=enough).stderr == "interrupted"
    assert run(["sleep", "60"], interrupted=enough).stderr == "interrupted"
    assert time.monotonic() - begun < 10


def test_hosts_answer_in_their_order_and_at_once(tmp_path: Path) -> None:
    shell = tmp_path / "ssh"
    last_two = 'for word; do last=$before; before=$word; done'
    shell.write_text(f'#!/bin/sh\n{last_two}\n[ "$last" = b ] && sleep 1\necho "$last: $before"\n')
    shell.chmod(0o755)
    begun = time.monotonic()
    answers = ssh.ask([str(shell)], ["a", "b", "c"], ["say", "two words"], 20.0)
    assert [answer.stdout for answer in answers] == [f"{host}: say 'two words'\n" for host in "abc"]
    assert time.monotonic() - begun < 10
    late = ssh.ask([str(shell)], ["b"] * 3, [sys.executable], 20.0, lambda: True)
    assert {answer.stderr for answer in late} == {"interrupted"}

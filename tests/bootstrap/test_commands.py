from __future__ import annotations

import io
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from launcher.bootstrap.commands import Progress, Runner, ask, clean_environment
from launcher.bootstrap.errors import BootstrapError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path / "logs", dict(os.environ))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_is_returned_and_logged(run: Runner) -> None:
    assert "hello" in run("greeting", python("print('hello')"), log="greeting")
    assert "hello" in (run.log_directory / "greeting.log").read_text()


def test_a_failure_is_a_sentence_with_the_log(run: Runner) -> None:
    with pytest.raises(BootstrapError, match=r"cooking failed: Error: burnt .*cook\.log") as caught:
        run("cooking", python("import sys; print('Error: burnt'); sys.exit(3)"), log="cook")
    assert caught.value.log == run.log_directory / "cook.log"


def test_a_missing_program_is_a_sentence(run: Runner) -> None:
    with pytest.raises(BootstrapError, match="cooking failed"):
        run("cooking", ["/no/such/program"], log="cook")


def test_percentages_in_the_output_are_shown(run: Runner) -> None:
    stream = Terminal()
    code = "import time\nfor p in (5, 37):\n    print(f'  [ {p}%] Building', flush=True)\n    time.sleep(1.3)"
    run("building", python(code), log="build", progress=Progress("[4/7] building", stream))
    assert "[4/7] building:  37 %" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_without_percentages_the_time_is_shown() -> None:
    stream = io.StringIO()
    progress = Progress("building", stream, every=0.0)
    progress.update(None)
    assert stream.getvalue() == "building: 0 s\n"


def test_off_a_terminal_lines_are_rare() -> None:
    stream = io.StringIO()
    progress = Progress("building", stream)
    for percent in range(50):
        progress.update(percent)
    assert stream.getvalue() == ""


def test_stop_ends_what_runs_and_starts_nothing_more(run: Runner) -> None:
    timer = threading.Timer(0.5, run.stop)
    timer.start()
    began = time.monotonic()
    with pytest.raises(BootstrapError):
        run("sleeping", ["sleep", "60"], log="sleep")
    assert time.monotonic() - began < 20
    with pytest.raises(BootstrapError, match="stopped before"):
        run("sleeping", ["sleep", "60"], log="sleep")


def test_the_outer_makes_settings_do_not_reach_the_commands() -> None:
    cleaned = clean_environment({"MAKEFLAGS": "w -j", "PYTHONPATH": "/x", "PIP_USER": "1", "HOME": "/h"}, EXTRA="1")
    assert cleaned["PIP_USER"] == "0"
    assert cleaned["HOME"] == "/h"
    assert cleaned["EXTRA"] == "1"
    assert not {"MAKEFLAGS", "PYTHONPATH"} & set(cleaned)


def test_ask_answers_whatever_happens() -> None:
    assert ask(python("print('x')"), environ=os.environ)[:2] == (0, "x\n")
    assert ask(["/no/such/program"], environ={})[0] == 127
    assert ask(["sleep", "60"], environ=os.environ, timeout=0.2)[0] == 124

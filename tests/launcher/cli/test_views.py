"""What a person sees, on a terminal and in a file."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import acting
from launcher.cli.find import Listed
from launcher.cli.follow import NewestEpochs, PlainGroup, PlainView, TerminalGroup, group_lines
from launcher.cli.texts import placement_text, state_text, waiting_text
from launcher.daemon.http.messages import JobView
from launcher.jobdir.metrics import MetricsFollower
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import HostSlots
from tests.launcher.cli.home import Home
from tests.launcher.helpers import command_line, plan

LINE = {"epoch": 0, "epochs": 2, "train_loss": 0.25, "herding_l2_vs_random": 0.8, "seconds": 1.0}


def test_plain_lines(tmp_path: Path) -> None:
    stream, job = io.StringIO(), JobPaths(tmp_path)
    view = PlainView(stream, job)
    follower = MetricsFollower(job.metrics)
    job.metrics.write_text(json.dumps(LINE) + "\n")
    view.started(plan())
    view.tick(follower.poll(), follower)
    view.tick(follower.poll(), follower)
    view.stopping("stopping")
    view.warn("odd")
    view.closed()
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("4 ranks by mpirun (Open MPI 4.1.8) on 4 cores; binding none, 1 thread a rank")
    assert lines[2:] == ["epoch 1/2  loss 0.2500  bound 0.80 of random  1 s left", "stopping", "warning: odd"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "4 ranks by mpirun (Open MPI 4.1.8) on 4 cores; binding none, 1 thread a rank"),
        ({"oversubscribed": True, "cores": 1, "server_ranks": 1}, "4 ranks, one of them the order server by mpirun"),
        ({"hosts": (HostSlots("n1", 2), HostSlots("n2", 2))}, " on n1 (2), n2 (2); "),
        ({"hosts": tuple(HostSlots(f"n{k}", 1) for k in range(9))}, " on n0 (1), n1 (1), n2 (1), n3 (1) and 5 more hosts; "),
        ({"backend": "slurm", "mpi_flavour": ""}, "4 ranks by slurm on the nodes that SLURM gives; "),
    ],
)
def test_where_the_ranks_are(changes: dict[str, Any], text: str) -> None:
    made = plan()
    launch = {name: changes.pop(name) for name in list(changes) if hasattr(made.launch, name)}
    made = replace(made, placement=replace(made.placement, **changes), launch=replace(made.launch, **launch))
    assert text in placement_text(made)


def on_terminal(home: Home, *arguments: str) -> tuple[int, str]:
    """Run the command with a pseudo-terminal as its output."""
    ours, theirs = pty.openpty()
    environment = home.environment({"TERM": "xterm-256color"})
    process = subprocess.Popen(command_line(*arguments), cwd=home.folder, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 1 << 16)
        except OSError:  # Linux says EIO when the other end has been closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    return process.wait(60), seen.decode()


@pytest.mark.parametrize("options", [["--foreground"], []], ids=["foreground", "daemon"])
def test_a_terminal_shows_a_moving_bar_and_keeps_the_epochs(home: Home, options: list[str]) -> None:
    code = (
        "import os, time\nprint('loading \\x1b[2J the data', flush=True)\ntime.sleep(1)\n"
        f"open(os.environ['HVDGRAB_JOB_DIR'] + '/metrics.jsonl', 'w').write({json.dumps(LINE) + chr(10)!r})\ntime.sleep(1)"
    )
    status, seen = on_terminal(home, home.python("shown", code), *options)
    assert status == 0
    assert "rank 0: loading  the data" in seen, "what rank 0 prints is shown until there is an epoch, without its control codes"
    assert "epoch 1/2  loss 0.2500  bound 0.80 of random" in seen
    assert any(line.startswith(("job directory:", "report:")) for line in seen.rstrip().splitlines()[-6:])
    assert "\x1b[2J" not in seen


def view(name: str, state: str = "running", **changes: Any) -> JobView:
    values: dict[str, Any] = {
        "id": f"{name}-20250102-030405-00ff", "name": name, "state": state, "exit_code": None, "dir": f"/jobs/{name}",
        "reason": None, "submitted": 0.0, "started": None, "finished": None, "seconds": None, "ranks": 1, "backend": "local",
        "attempt": 1, "attempts": 0, "group": "g", "priority": 0, "owner": "here", "next_try": None,
    }  # fmt: skip
    return JobView(**{**values, **changes})


ENDED = {"exit_code": 4, "seconds": 9.0, "reason": "rank 0 ended\x1b[2J badly", "finished": 9.0}


def test_a_group_in_a_file_has_a_line_for_each_change_and_the_table_at_its_end() -> None:
    stream = io.StringIO()
    shown = PlainGroup(stream)
    shown.update([view("a"), view("b", "queued", reason="waits for 1 CPU slot")])
    shown.update([view("a"), view("b", "queued", reason="waits for 1 CPU slot")])
    shown.update([view("a", "failed", **ENDED), view("b")])
    shown.closed()
    shown.closed()
    lines = stream.getvalue().splitlines()
    assert [line.replace("-20250102-030405-00ff", "") for line in lines] == [
        "a: running",
        "b: queued: waits for 1 CPU slot",
        "a: failed after 9 s, exit code 4",
        "reason: rank 0 ended badly",
        "b: running",
        "JOB                     STATE    TIME  PROGRESS",
        "a  failed   9 s   rank 0 ended badly",
        "b  running  -",
        "2 jobs: 1 failed, 1 running",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_group_on_a_terminal_is_a_table_that_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    shown = TerminalGroup(stream)
    shown.update([view("a"), view("b")])
    shown.warn("odd")
    shown.update([view("a", "failed", **ENDED), view("b")])
    shown.closed()
    shown.closed()
    text = stream.getvalue()
    assert "warning: odd" in text
    assert text.count("2 jobs: 2 running") >= 1
    assert "1 failed, 1 running" in text.splitlines()[-1]
    assert "\x1b[2J" not in text


def test_what_has_failed_or_runs_comes_before_what_is_done_where_the_terminal_is_low() -> None:
    views = [view(f"s{k}", "succeeded") for k in range(5)] + [view("r"), view("f", "failed", **ENDED)]
    lines = group_lines(views, NewestEpochs(), 3)
    assert [line.split("-")[0] for line in lines[1:-1]] == ["s0", "r", "f"]
    assert lines[-1] == "7 jobs: 5 succeeded, 1 running, 1 failed"


def test_a_state_is_told_with_its_attempt_its_reason_and_the_next_try() -> None:
    assert state_text(view("a")) == "running"
    assert state_text(view("a", attempt=2)) == "running (attempt 2)"
    assert state_text(view("a", "cancelled", reason="cancelled by the user")) == "cancelled by the user"
    text = state_text(view("a", "restarting", next_try=time.time() + 100.4, reason="attempt 1 hung"))
    assert text == "restarting, next attempt in 1 min 40 s: attempt 1 hung"
    assert waiting_text(view("a", "restarting", next_try=5.0), now=7.0) == "now"


class Slow:
    """A daemon whose job takes a while to end."""

    def __init__(self, *answers: JobView) -> None:
        self._answers = list(answers)

    def wait(self, job_id: str, seconds: float) -> JobView:
        assert seconds <= acting.CANCEL_SECONDS
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_cancel_says_what_it_waits_for_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    slow, gone = view("slow"), view("slow", "cancelled", reason="cancelled", exit_code=130, finished=2.0)
    silent = view("silent", "unknown", reason="SLURM does not answer")
    (ended,) = acting._gone(Slow(slow, gone), [Listed(slow)])  # type: ignore[arg-type]
    assert ended.view.state == "cancelled"
    assert "asked to end, now running; what does not end by itself is killed after a minute" in capsys.readouterr().err
    (ended,) = acting._gone(Slow(silent), [Listed(silent)])  # type: ignore[arg-type]
    assert "SLURM does not answer" in capsys.readouterr().err
    assert f"`hvdgrab-launch wait {silent.id}`" in acting._cancelled_text(ended.view, before=False)
    acting._gone(Slow(gone), [Listed(slow)])  # type: ignore[arg-type]
    assert capsys.readouterr().err == "", "what ends at once needs no words"

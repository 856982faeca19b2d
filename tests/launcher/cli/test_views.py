"""What a person sees, on a terminal and in a file."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
from pathlib import Path

from launcher.cli.views import PlainView
from launcher.paths import JobPaths
from launcher.progress import MetricsFollower
from tests.launcher.helpers import clean_environment, command_line, plan

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
    assert lines[0].endswith("4 ranks by horovodrun (Open MPI 4.1.8) on 4 cores; binding none, 1 thread a rank")
    assert lines[2:] == ["epoch 1/2  loss 0.2500  bound 0.80 of random  1 s left", "stopping", "warning: odd"]


def on_terminal(file: Path, folder: Path) -> tuple[int, str]:
    """Run a job with a pseudo-terminal as its output."""
    ours, theirs = pty.openpty()
    environment = clean_environment({"TERM": "xterm-256color", "HVDGRAB_JOBS": str(folder / "jobs")})
    process = subprocess.Popen(command_line(str(file)), cwd=folder, env=environment, stdout=theirs, stderr=theirs)
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


def test_a_terminal_shows_a_moving_bar_and_keeps_the_epochs(tmp_path: Path) -> None:
    code = (
        "import os, time\nprint('loading \\x1b[2J the data', flush=True)\ntime.sleep(1)\n"
        f"open(os.environ['HVDGRAB_JOB_DIR'] + '/metrics.jsonl', 'w').write({json.dumps(LINE) + chr(10)!r})\ntime.sleep(1)"
    )
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"command": ["python", "-c", code], "resources": {"ranks": 1}}))
    status, seen = on_terminal(file, tmp_path)
    assert status == 0
    assert "rank 0: loading  the data" in seen, "what rank 0 prints is shown until there is an epoch, without its control codes"
    assert "epoch 1/2  loss 0.2500  bound 0.80 of random" in seen
    assert seen.rstrip().splitlines()[-1].startswith(("job directory:", "report:", "warning:"))
    assert "\x1b[2J" not in seen

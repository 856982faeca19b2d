from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.bootstrap.quickstart import run_quickstart
from tests.bootstrap.conftest import ROOT


def fake_launcher(root: Path, text: str) -> Path:
    program = root / "venv" / "bin" / "hvdgrab-launch"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return root / "venv"


def test_the_job_runs_in_the_checkout_and_its_directory_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "jobs" / "old").mkdir(parents=True)
    (tmp_path / "jobs" / "old" / "plan.json").write_text("{}")
    venv = fake_launcher(tmp_path, 'echo "$1 in $(pwd)"; mkdir -p jobs/new; echo "{}" > jobs/new/plan.json')
    assert run_quickstart(lambda: 0, venv, tmp_path, os.environ) == 0
    out = capfd.readouterr().out
    assert f"configs/quickstart.yaml in {tmp_path}" in out
    assert f"results: {tmp_path / 'jobs' / 'new'}" in out
    assert "wall time: set-up 0 s, job " in out
    assert f"`{venv}/bin/hvdgrab-launch daemon stop` ends it" in out


def test_the_jobs_exit_code_is_the_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_quickstart(lambda: 0, fake_launcher(tmp_path, "exit 7"), tmp_path, os.environ) == 7
    assert "results" not in capfd.readouterr().out


def test_without_a_set_up_no_job_is_started(tmp_path: Path) -> None:
    assert run_quickstart(lambda: 1, fake_launcher(tmp_path, "exit 0"), tmp_path, os.environ) == 1


def test_an_interrupt_waits_for_the_launchers_own_end(tmp_path: Path) -> None:
    venv = fake_launcher(tmp_path, "trap 'echo stopping ranks; exit 130' INT; echo started; while :; do sleep 0.1; done")
    code = (
        "import os, sys; from pathlib import Path; from launcher.bootstrap.quickstart import run_quickstart\n"
        f"sys.exit(run_quickstart(lambda: 0, Path({str(venv)!r}), Path({str(tmp_path)!r}), os.environ))"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "started":
            pass
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130
    assert "stopping ranks" in rest

"""The whole answer: of this environment, of one without anything, on a terminal and as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from launcher.bootstrap.environment import Environment
from launcher.cli.doctor import main as command
from launcher.cli.doctor.checks import Check, Report, lines
from launcher.cli.doctor.main import collect
from launcher.spec.model import Spec
from tests.bootstrap.conftest import Shims
from tests.real import need

HOST = {"Python", "cores", "binding", "/dev/shm", "locked memory", "open files", "network", "InfiniBand", "GPUs", "daemon"}
PACKAGES = {"torch", "mpi4py", "Horovod", "one MPI", "scikit-learn", "matplotlib"}
PROGRAMS = {"mpirun", "horovodrun", "mpicxx", "C++ compiler"}
NAMES = HOST | PACKAGES | PROGRAMS


@pytest.fixture(autouse=True)
def no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDGRAB_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HVDGRAB_RUNTIME", str(tmp_path / "run"))


def test_an_interpreter_without_anything_is_reported_not_crashed_on(shims: Shims) -> None:
    python = shims("sh", python="echo 'Segmentation fault' >&2; exit 139") / "python"
    report = collect(str(python), {"PATH": str(python.parent)})
    missing = {check.name for check in report.checks if check.state == "missing"}
    assert {"torch", "mpi4py", "Horovod", "one MPI", "mpirun"} <= missing
    assert not report.ok
    assert all(check.fix for check in report.checks if check.state != "ok")
    assert {check.name for check in report.checks} >= NAMES


def fake_report(*states: str) -> Report:
    return Report(tuple(Check(f"part {k}", state, "[found] " + "word " * 40, "do this") for k, state in enumerate(states)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("states", "code"), [(("ok", "note"), 0), (("ok", "missing"), 1)])
def test_output_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], states: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr(command, "collect", lambda: fake_report(*states))
    assert command.main(as_json=True) == code
    raw = json.loads(capsys.readouterr().out)
    assert raw["ok"] == (code == 0)
    assert [check["state"] for check in raw["checks"]] == list(states)
    assert command.main(as_json=False) == code
    text = capsys.readouterr().out
    assert "[found]" in text
    assert "\x1b" not in text
    assert "part 1: do this" in text


def test_long_lines_are_folded_under_their_column() -> None:
    text = lines(fake_report("note"), width=60, colour=False)
    assert all(len(line) <= 60 for line in text)
    assert text[1].startswith(" " * 17)
    assert any("\x1b[33m" in line for line in lines(fake_report("note"), width=60, colour=True))


def test_a_job_that_cannot_run_here_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "collect", lambda: fake_report("ok"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "j.yaml").write_text("command: [python, -c, pass]\nresources: {ranks: 1}\n")
    assert command.main("j.yaml", as_json=False) == 0
    assert "j: 1 rank by local" in capsys.readouterr().out
    assert command.main("j.yaml", ["workdir=/no/such"], as_json=False) == 1
    assert "/no/such is not a directory" in capsys.readouterr().out
    assert not (tmp_path / "jobs").exists()


def test_hosts_of_a_job_are_asked_and_each_fault_has_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shim = tmp_path / "bin" / "ssh"
    shim.parent.mkdir()
    shim.write_text(
        '#!/bin/sh\nfor word; do last="$word"; done\ncase "$*" in\n'
        '  *" good "*) exec sh -c "$last";;\n'
        '  *) echo "ssh: connect to host bad port 22: Connection refused" >&2; exit 255;;\nesac\n'
    )
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(command, "collect", lambda: fake_report("ok"))
    monkeypatch.chdir(tmp_path)
    job = {"command": ["python", "-c", "pass"], "resources": {"ranks": 2, "hosts": ["good:1", "bad:1"], "allow_root": True}}
    (tmp_path / "j.yaml").write_text(json.dumps({**job, "backend": {"kind": "mpirun"}}))
    assert command.main("j.yaml", as_json=True) == 1
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["host good"]["state"] == "ok"
    assert (checks["host bad"]["state"], checks["host bad"]["found"]) == (
        "missing", "ssh: connect to host bad port 22: Connection refused",
    )  # fmt: skip
    assert "start sshd there" in checks["host bad"]["fix"]
    assert list((tmp_path / "jobs").iterdir()) == [], "the directory that was made for the question is gone"


def test_slurm_is_asked_on_request_and_for_jobs_that_go_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str | None] = []

    def checks(spec: Spec | None) -> list[Check]:
        asked.append(spec.name if spec else None)
        return [Check("SLURM", "ok", "answers")]

    monkeypatch.setattr(command, "collect", lambda: fake_report("ok"))
    monkeypatch.setattr("launcher.cli.doctor.slurm.checks", checks)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").write_text("command: [python, -c, pass]\nresources: {ranks: 1}\n")
    (tmp_path / "there.yaml").write_text("command: [python, -c, pass]\nresources: {ranks: 1}\nbackend: {kind: slurm}\n")
    for file, slurm in [(None, False), (None, True), ("here.yaml", False), ("here.yaml", True), ("there.yaml", False)]:
        command.main(file, slurm=slurm, as_json=True)
    assert asked == [None, "here", "there"]
    capsys.readouterr()


def test_this_environment_is_whole() -> None:
    facts = Environment(Path(sys.executable)).look(os.environ)
    need("Horovod with mpi4py", facts.has("horovod") and facts.has("mpi4py"))
    report = collect()
    assert report.ok, [check for check in report.checks if check.state == "missing"]
    found = {check.name: check.found for check in report.checks}
    assert set(found) >= NAMES
    assert "MPI_THREAD_MULTIPLE" in found["mpi4py"]
    assert found["one MPI"].startswith("/")
    assert "does not run" in found["daemon"]

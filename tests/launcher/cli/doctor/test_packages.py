from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import launcher
from launcher.bootstrap.probes import Probe
from launcher.cli.doctor import packages

BROKEN = Probe(None, "ImportError: libmpi.so.40: cannot open shared object file")
MPI4PY = {"version": "4.1.2", "library": "Open MPI v4.1.8", "multiple": True, "libmpi": []}
HOROVOD = {"version": "0.28.1", "mpi": True, "nccl": False, "cuda": False, "gloo": False}


@pytest.mark.parametrize("judge", packages.JUDGES.values(), ids=packages.JUDGES)
def test_what_does_not_import_is_missing_and_has_a_fix(judge: Any) -> None:
    check = judge(BROKEN)
    assert check.state == "missing"
    assert "libmpi.so.40" in check.found
    assert "make setup" in check.fix
    assert "python -m launcher.bootstrap" in check.fix or "pip install" in check.fix


def test_outside_a_checkout_make_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launcher, "__file__", str(tmp_path / "site-packages" / "launcher" / "__init__.py"))
    assert packages.horovod_check(BROKEN).fix == "`python -m launcher.bootstrap horovod` with this Python"


def test_two_mpi_libraries_are_missing_one() -> None:
    check = packages.one_mpi_check(Probe({"libmpi": ["/a/libmpi.so.12", "/b/libmpi.so.40"]}))
    assert check.state == "missing"
    assert "/a/libmpi.so.12, /b/libmpi.so.40" in check.found
    assert packages.one_mpi_check(Probe({"libmpi": ["/a/libmpi.so.12"]})).state == "ok"


def test_a_horovod_without_mpi_is_no_good() -> None:
    assert packages.horovod_check(Probe({**HOROVOD, "mpi": False})).state == "missing"


@pytest.mark.parametrize(
    ("built", "text"),
    [
        ([], "MPI"),
        (["nccl"], "MPI and NCCL"),
        (["nccl", "cuda"], "MPI, NCCL and CUDA"),
        (["nccl", "cuda", "gloo"], "MPI, NCCL, CUDA and Gloo"),
    ],
)
def test_a_horovod_says_what_it_was_built_with(built: list[str], text: str) -> None:
    check = packages.horovod_check(Probe({**HOROVOD, **dict.fromkeys(built, True)}))
    assert (check.state, check.found) == ("ok", f"0.28.1 with {text}")


def test_an_mpi_without_threads_is_no_good() -> None:
    assert packages.mpi4py_check(Probe(MPI4PY)).state == "ok"
    check = packages.mpi4py_check(Probe({**MPI4PY, "multiple": False}))
    assert check.state == "missing"
    assert "MPI_THREAD_MULTIPLE" in check.fix


def test_extras_are_only_noted() -> None:
    check = packages.extra_check("sklearn", BROKEN)
    assert check.state == "note"
    assert "pip install 'hvdgrab[examples]'" in check.fix

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.bootstrap import probes
from launcher.bootstrap.environment import Environment
from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.toolchain import Mpi, describe_mpi, find_system_mpi
from tests.real import need

MPI = Mpi(Path("/venv/bin"), "Open MPI", "4.1.8", bundled=True)
GOOD: dict[str, dict[str, Any]] = {
    "horovod": {"mpi": True, "nccl": False, "version": "0.28.1"},
    "together": {"libmpi": ["/venv/lib/libmpi.so.40"]},
    "smoke": {"size": 2, "world": 2, "total": 3.0},
}


def judge(monkeypatch: pytest.MonkeyPatch, changed: dict[str, dict[str, Any] | None] | None = None, nccl: bool = False) -> str:
    answers: dict[str, dict[str, Any] | None] = {**GOOD, **(changed or {})}
    monkeypatch.setattr(probes, "run_probe", lambda name, *_: probes.Probe(answers[name], "boom"))
    monkeypatch.setattr(probes, "run_smoke", lambda *_: probes.Probe(answers["smoke"], "boom"))
    return probes.verify(Path("python"), MPI, {}, nccl=nccl)


def test_a_sound_environment_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "share /venv/lib/libmpi.so.40" in judge(monkeypatch)


FAULTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "built without MPI": ("horovod", {"mpi": False, "nccl": False}),
    "starting Horovod in one process failed: boom": ("horovod", None),
    "loading mpi4py beside Horovod failed: boom": ("together", None),
    "different MPI libraries (/a, /b)": ("together", {"libmpi": ["/a", "/b"]}),
    "different MPI libraries (none seen)": ("together", {"libmpi": []}),
    "unset LD_LIBRARY_PATH": ("together", {"libmpi": ["/usr/lib/libmpi.so.40"]}),
    "do not see each other": ("smoke", {"size": 1, "world": 1, "total": 1.0}),
    "world of Horovod: 1, of mpi4py: 2": ("smoke", {"size": 1, "world": 2, "total": 1.0}),
    "an allreduce of two ranks under /venv/bin/mpirun failed: boom": ("smoke", None),
}


@pytest.mark.parametrize("expected", FAULTS)
def test_each_fault_has_its_sentence(monkeypatch: pytest.MonkeyPatch, expected: str) -> None:
    name, answer = FAULTS[expected]
    with pytest.raises(BootstrapError) as caught:
        judge(monkeypatch, {name: answer})
    assert expected in str(caught.value)


def test_nccl_must_be_there_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BootstrapError, match="without NCCL"):
        judge(monkeypatch, nccl=True)


def test_answers_are_found_among_other_output() -> None:
    assert probes.read_answer(0, 'warning\nHVDGRAB-PROBE {"a": 1}\n', "").answer == {"a": 1}
    assert probes.read_answer(1, "", "Traceback\nImportError: no libmpi\n").complaint == "ImportError: no libmpi"
    assert probes.read_answer(-11, "", "").complaint == "exit code -11 without a word"


def test_an_outer_jobs_variables_do_not_reach_a_probe() -> None:
    outer = {"OMPI_COMM_WORLD_SIZE": "4", "PMI_RANK": "0", "SLURM_JOB_ID": "1", "OMPI_MCA_btl": "self", "A": "b"}
    assert probes.single_process(outer) == {"OMPI_MCA_btl": "self", "A": "b", "OMP_NUM_THREADS": "1"}


def test_this_environment_trains() -> None:
    """The real thing: one process, then two ranks under mpirun."""
    environment = Environment(Path(sys.executable))
    facts = environment.look(os.environ)
    need("Horovod with mpi4py", facts.has("horovod") and facts.has("mpi4py"))
    mpi = find_system_mpi(os.environ) or describe_mpi(facts.scripts, os.environ, bundled=True)
    path = os.pathsep.join([str(facts.scripts), os.environ["PATH"]])
    assert "an allreduce of two ranks gave the right sum" in probes.verify(environment.python, mpi, {**os.environ, "PATH": path})

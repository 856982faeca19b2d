"""The command line as a user meets it: each fault is one sentence, a non-zero exit code, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.bootstrap.conftest import ROOT, Shims
from tests.real import need


def bootstrap(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as home:
        around = {**os.environ, "HVDGRAB_CACHE": str(Path(home, "cache")), **environ}
        argv = [sys.executable, "-m", "launcher.bootstrap", *arguments]
        return subprocess.run(argv, cwd=ROOT, env=around, capture_output=True, text=True, check=False, timeout=300)


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr + done.stdout
    return done.stderr


def test_no_compiler(shims: Shims, tmp_path: Path) -> None:
    done = bootstrap("setup", "--venv", str(tmp_path / "venv"), PATH=str(shims("sh")))
    assert "no C++ compiler" in sentence(done)
    assert not (tmp_path / "venv").exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = bootstrap("setup", "--venv", str(tmp_path / "venv"), HVDGRAB_CACHE=str(tmp_path / "file" / "cache"))
    assert "cannot be written" in sentence(done)


def test_an_mpi_that_cannot_compile(shims: Shims) -> None:
    folder = shims("sh", mpicxx="echo 'error: no compiler module' >&2; exit 1")
    done = bootstrap("horovod", PATH=f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert "no compiler module" in sentence(done)
    assert "MPI=pypi" in done.stderr


def test_no_network() -> None:
    """pip itself, sent to an address where nobody listens."""
    from launcher.bootstrap.environment import Environment

    facts = Environment(Path(sys.executable)).look(os.environ)
    need("an MPI in the environment", (facts.scripts / "mpicxx").exists())
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1",
    }
    done = bootstrap("mpi4py", **nowhere)
    assert "no network: pip could not reach its package index" in sentence(done)
    assert "full log: " in done.stderr


@pytest.mark.parametrize("command", ["setup", "horovod", "mpi4py", "quickstart"])
def test_every_command_has_help(command: str) -> None:
    done = bootstrap(command, "--help")
    assert done.returncode == 0
    assert command in done.stdout


def test_make_lists_its_targets() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    for target in ("setup", "quickstart", "test", "lint", "clean", "help"):
        assert f"make {target} " in done.stdout


def test_makes_options_reach_the_setup() -> None:
    argv = ["make", "-n", "setup", "GPU=nccl", "TORCH=2.12.0", "MPI=pypi", "REBUILD=1", "VENV=/x y", "PYTHON=python3.12"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    for text in ('--gpu "nccl"', '--torch "2.12.0"', '--mpi "pypi"', "--rebuild", '--venv "/x y"', 'find_python.sh "python3.12"'):
        assert text in done.stdout


def test_ci_does_what_make_test_does_and_needs_no_more_than_it_says(shims: Shims) -> None:
    """Without the tools and without apt-get, CI is red and says what is missing."""
    folder = shims("sh", "bash", "dirname", "id")
    done = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run")], env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: missing here: make g++ g++ gcc ")
    assert " python3 python3-venv python3-dev; as root" in done.stderr
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("\nmake test")

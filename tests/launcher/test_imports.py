"""Which packages the launcher may import, looked up in its source and in a running interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.launcher.helpers import CHECKOUT, clean_environment

FORBIDDEN = {"torch", "mpi4py", "horovod", "numpy"}
ALLOWED_OF_HVDGRAB = {"hvdgrab", "hvdgrab.config", "hvdgrab.config.sections", "hvdgrab.config.settings", "hvdgrab.errors"}
MODULES = sorted(path for path in (CHECKOUT / "launcher").rglob("*.py") if "bootstrap" not in path.parts)


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_sources_import_neither_torch_nor_mpi_and_little_of_hvdgrab() -> None:
    assert len(MODULES) > 25
    for path in MODULES:
        names = set(imported(path))
        assert not {name for name in names if name.split(".")[0] in FORBIDDEN}, path
        assert {name for name in names if name.split(".")[0] == "hvdgrab"} <= ALLOWED_OF_HVDGRAB, path


def test_loading_everything_brings_in_none_of_them() -> None:
    chosen = [path for path in MODULES if path.stem not in ("__main__", "doctor")]
    names = [".".join(path.relative_to(CHECKOUT).with_suffix("").parts) for path in chosen]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
    code += f"print(sorted(set({sorted(FORBIDDEN)!r}) & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")

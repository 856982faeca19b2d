"""Stand-ins for tools: a folder of small programs that becomes the PATH."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Shims = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shims(tmp_path: Path) -> Shims:
    """Make a folder with the given scripts (name to shell text) and links to the named real programs."""

    def make(*real: str, **scripts: str) -> Path:
        folder = tmp_path / "shims"
        folder.mkdir(exist_ok=True)
        for name in real:
            found = shutil.which(name)
            assert found is not None, f"{name} is needed by this test"
            (folder / name).symlink_to(found)
        for name, text in scripts.items():
            path = folder / name.replace("_DOT_", ".")
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        return folder

    return make

"""The tests' daemon is never the user's: it keeps its things in a directory of its own, and ends with the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def daemon_directories() -> Iterator[Path]:
    """Where a daemon that a test starts without further ado keeps its record and its socket, whose path must be short."""
    folder = Path(tempfile.mkdtemp(prefix="hvdgrab-tests-", dir="/tmp"))
    os.environ["HVDGRAB_STATE"], os.environ["HVDGRAB_RUNTIME"] = str(folder / "state"), str(folder / "run")
    yield folder
    if (folder / "run").exists():
        from tests.launcher.cli.home import end_daemon

        end_daemon(folder)
    shutil.rmtree(folder, ignore_errors=True)

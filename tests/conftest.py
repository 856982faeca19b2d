"""What holds for all tests: which run in one process where there are several, and that their daemon is never the user's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """With ``-n 2``: a file's tests run in one process, since they share what is dear to start."""

    def _split_scope(self, nodeid: str) -> str:
        """All tests of a real cluster; each number of real ranks by itself; else a file."""
        file = nodeid.split("::")[0]
        if file.startswith("tests/slurm/"):
            return "tests/slurm"
        world = re.search(r"-(no|\d+)-ranks?\]$", nodeid)
        return file if world is None else f"{file}{world[0]}"


def pytest_configure() -> None:
    """A shell that starts the tests in the background leaves INT ignored; jobs that tests interrupt would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together:
    return Together(config, log)


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

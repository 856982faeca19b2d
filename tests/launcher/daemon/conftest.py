from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.daemon.kit import World
from tests.launcher.daemon.real import RealDaemon


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealDaemon]:
    made = RealDaemon(monkeypatch)
    yield made
    made.close()

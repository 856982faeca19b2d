from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.bootstrap import plan
from launcher.bootstrap.errors import BootstrapError


def with_free(size: float) -> Any:
    return lambda path: SimpleNamespace(f_bavail=int(size // 4096), f_frsize=4096)


def test_enough_is_enough(tmp_path: Path) -> None:
    plan.require_space({tmp_path / "new" / "venv": 1e9}, with_free(2e9))


def test_too_little_names_both_sizes_and_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match=r"no disk space: 0\.5 GB are free at .* needs about 2\.0 GB .* VENV=DIR"):
        plan.require_space({tmp_path / "venv": 2e9}, with_free(0.5e9))


def test_needs_on_one_disk_are_added_up(tmp_path: Path) -> None:
    needs = {tmp_path / "venv": 1.5e9, tmp_path / "cache": 1.0e9}
    for folder in needs:
        folder.mkdir()
    with pytest.raises(BootstrapError, match=r"about 2\.5 GB"):
        plan.require_space(needs, with_free(2e9), lambda path: 1)
    plan.require_space(needs, with_free(2e9), lambda path: hash(path))


def test_a_folder_to_come_is_looked_for_above(tmp_path: Path) -> None:
    assert plan.existing_parent(tmp_path / "a" / "b") == tmp_path
    assert os.statvfs(plan.existing_parent(Path("/nowhere/at/all"))).f_frsize > 0

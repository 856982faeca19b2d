"""Every check of ``checks_*.py``, in jobs of 0 (no Horovod), 1, 2 and 4 real ranks."""

from __future__ import annotations

import pytest

from tests.training.conftest import Worlds
from tests.training.ranks import all_checks

CASES = [
    pytest.param(
        world,
        one.name,
        id=f"{one.name}-{world or 'no'}-rank{'s' if world > 1 else ''}",
        marks=[pytest.mark.soak] if world in one.soak else [],
    )
    for one in all_checks()
    for world in one.worlds
]


@pytest.mark.parametrize(("world", "name"), sorted(CASES, key=lambda case: case.values[0]))
def test_check(world: int, name: str, worlds: Worlds) -> None:
    if text := worlds.result(world, name):
        pytest.fail(text, pytrace=False)

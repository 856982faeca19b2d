from __future__ import annotations

from tests.launcher.cli.home import home, own_home

__all__ = ["home", "own_home"]

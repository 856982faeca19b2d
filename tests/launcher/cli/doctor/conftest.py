from __future__ import annotations

from tests.bootstrap.conftest import shims

__all__ = ["shims"]

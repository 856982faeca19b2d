"""``python -m launcher``: the same as ``hvdgrab-launch``."""

from __future__ import annotations

import sys

from launcher.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

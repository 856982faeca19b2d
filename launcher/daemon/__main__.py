"""``python -m launcher.daemon``."""

import sys

from launcher.daemon.main import main

if __name__ == "__main__":
    sys.exit(main())

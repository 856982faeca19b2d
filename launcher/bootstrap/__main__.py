"""Entry point. Must stay readable by Pythons as old as 2.7 and 3.4, so that those get a sentence and not a SyntaxError."""

import sys

OLDEST, NEWEST = (3, 10), (3, 12)

if not OLDEST <= sys.version_info[:2] <= NEWEST:
    found = sys.executable + " is Python " + ".".join(str(part) for part in sys.version_info[:2])
    advice = "name another one: make setup PYTHON=python3.11"
    sys.stderr.write("error: hvdgrab needs Python 3.10, 3.11 or 3.12, and " + found + "; " + advice + "\n")
    sys.exit(2)

from launcher.bootstrap.app import main  # noqa: E402 - only once the version is known to be right

if __name__ == "__main__":
    sys.exit(main())

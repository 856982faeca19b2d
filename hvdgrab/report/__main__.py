"""``python -m hvdgrab.report JOBDIR [MORE…]``: a job's training as one page, JOBDIR/report.html.

With several job directories their curves lie over each other, for comparing orders; the page is comparison.html in the first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hvdgrab.report.page import ReportError, write


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; returns 0, or 1 if there is nothing to report."""
    parser = argparse.ArgumentParser(prog="python -m hvdgrab.report", description=__doc__)
    parser.add_argument("directories", metavar="JOBDIR", type=Path, nargs="+", help="job directory; several are compared")
    directories = parser.parse_args(arguments).directories
    try:
        print(write(directories))
    except (ReportError, OSError) as error:
        print(f"hvdgrab.report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

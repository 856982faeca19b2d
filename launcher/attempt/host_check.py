"""What a host answers before ranks are started there, as a line of JSON.

``python -m launcher.attempt.host_check JOBDIR ATTEMPT TOKEN WORKDIR``.

Standard library only.  Earlier attempts of the job that still live here are ended: two may never run at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.attempt.sweep import sweep
from launcher.jobdir.paths import AttemptPaths, JobPaths

SAME, OTHER, MISSING = "the same", "another one", "missing"
"""What a host sees in the place of the job directory."""


def token_of(attempt: AttemptPaths) -> str:
    """What tells whether two hosts see the same attempt's directory; '' if there is none."""
    try:
        return hashlib.sha256(attempt.claim.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def answer(attempt: AttemptPaths, token: str, workdir: str) -> dict[str, object]:
    """What this host finds."""
    seen = token_of(attempt)
    left = sweep(attempt.job.id, 0.0)[1] if attempt.number > 1 else []
    return {
        "host": os.uname().nodename,
        "cores": len(os.sched_getaffinity(0)),
        "job_dir": SAME if seen == token else OTHER if attempt.job.root.is_dir() else MISSING,
        "writable": os.access(attempt.ranks, os.W_OK) and os.access(attempt.job.logs, os.W_OK),
        "workdir": Path(workdir).is_dir(),
        "remaining": left,
    }


def main(argv: Sequence[str]) -> int:
    """Entry point; returns the exit code."""
    if len(argv) != 4:
        print("usage: python -m launcher.attempt.host_check JOBDIR ATTEMPT TOKEN WORKDIR", file=sys.stderr)
        return 2
    print(json.dumps(answer(JobPaths(Path(argv[0])).attempt(int(argv[1])), argv[2], argv[3])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

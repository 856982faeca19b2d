"""Why ranks have left no marks: a full disk, or a directory that cannot be written, shall not look like ranks that never ran."""

from __future__ import annotations

import re

from launcher.host.files import obstacle
from launcher.jobdir.paths import AttemptPaths

_COMPLAINT = re.compile(rb"^rank \d+: (?:its mark cannot be written|the job directory .+ cannot be used): .+$", re.MULTILINE)
"""What a rank's wrapper says where it cannot leave its mark; see `launcher.jobdir.marks` and `launcher.attempt.rank.wrapper`."""


def refused(attempt: AttemptPaths, said: bytes = b"") -> str | None:
    """The path that could not be written, and why; None where nothing is known to have been refused.

    Args:
        attempt: whose marks are missing.
        said: the last output of what started the ranks: it reached this process where no log could take it.
    """
    complaint = _COMPLAINT.search(said)
    if complaint is not None:
        return complaint.group().decode("utf-8", "replace").strip()
    return obstacle(attempt.ranks)

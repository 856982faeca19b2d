from __future__ import annotations

from pathlib import Path

import pytest

from launcher.jobdir.paths import JobPaths
from launcher.jobdir.stop import Stop


@pytest.mark.parametrize(
    ("text", "cause", "hosts"),
    [
        ('{"cause": "hang", "by": "x", "bad_hosts": ["n1", 2]}', "hang", ("n1",)),
        ('{"cause": 7, "by": [], "bad_hosts": 3, "time": "soon"}', "cancelled", ()),
        ('{"cause": "lunch", "reason": null, "time": true}', "cancelled", ()),
    ],
)
def test_a_damaged_request_is_still_a_request(tmp_path: Path, text: str, cause: str, hosts: tuple[str, ...]) -> None:
    attempt = JobPaths(tmp_path).attempt(1)
    attempt.stop.parent.mkdir(parents=True)
    attempt.stop.write_text(text)
    found = Stop.read(attempt)
    assert found is not None
    assert (found.cause, found.bad_hosts) == (cause, hosts)
    assert isinstance(found.time, float | int)
    assert isinstance(found.by, str)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_what_is_no_request_at_all(tmp_path: Path, text: str) -> None:
    attempt = JobPaths(tmp_path).attempt(1)
    attempt.stop.parent.mkdir(parents=True)
    attempt.stop.write_text(text)
    assert Stop.read(attempt) is None

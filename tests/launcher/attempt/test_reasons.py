"""What a failed rank's exception says."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.attempt.judge import LONGEST, exception_of
from tests.launcher.attempts import job_of, python, run

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    run(\n        ^^^\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", None),
        ("epoch 1\nKeyError: not an exception of this program\n", None),
        (TRACEBACK + "ValueError: no good\n", "ValueError: no good"),
        (TRACEBACK + "mpi4py.MPI.Exception: MPI_ERR_INTERN: x\n--- mpirun\n", "mpi4py.MPI.Exception: MPI_ERR_INTERN: x"),
        (TRACEBACK + "AssertionError\n", "AssertionError"),
        (TRACEBACK + "OSError: first\nsecond line\n", "OSError: first"),
        (TRACEBACK + "KeyError: 1\n\nDuring handling of it, another occurred:\n\n" + TRACEBACK + "a.B: last\n", "a.B: last"),
        (TRACEBACK + "OldError: x\n=== attempt 2, 2026-11-29 21:00:00, node-1 ===\nfine\n", None),
        (TRACEBACK + "E: \x1b[2Jred\n", "E: [2Jred"),
        (TRACEBACK + "E: " + "x" * 500 + "\n", "E: " + "x" * (LONGEST - 7) + " ..."),
        (TRACEBACK, None),
    ],
)  # fmt: skip
def test_the_exception_is_the_last_tracebacks_of_the_last_attempt(tmp_path: Path, text: str, said: str | None) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 70_000 + "\n" + text)
    assert exception_of(log) == said
    assert exception_of(tmp_path / "none") is None


def test_it_stands_in_the_reason_of_the_attempt_with_secrets_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2hunter2")
    code = "import os; raise ConnectionError('refused with ' + os.environ['API_TOKEN'])"
    end = run(job_of(tmp_path, python(code), ranks=1, kind="local", secrets=["API_TOKEN"]))
    assert end.reason is not None and end.reason.endswith("ended with exit code 1: ConnectionError: refused with ***")

"""The wrapper under bad conditions: floods, full disks, removed directories, few descriptors."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.host import files
from launcher.jobdir.end import AttemptEnd
from launcher.jobdir.marks import read_marks
from tests.launcher.attempts import end_of, job_of, python, run, supervise, until
from tests.launcher.helpers import CHECKOUT, clean_environment
from tests.real import need

FLOOD = """
import os, sys
lines = int(sys.argv[1])
block = b"".join(b"\\xff\\xfe line %d \\x00\\x80\\r\\n" % number if number % 2 else b"%d%%\\r" % number for number in range(1000))
for _ in range(lines // 1000):
    os.write(1, block)
    os.write(2, b"\\xc3")
"""
SMALL = 1 << 20


def flooded(lines: int) -> int:
    block = sum(len(b"\xff\xfe line %d \x00\x80\r\n" % n if n % 2 else b"%d%%\r" % n) for n in range(1000))
    return (block + 1) * (lines // 1000)


def test_a_flood_of_bad_bytes_and_carriage_returns_is_kept_to_the_byte(tmp_path: Path) -> None:
    lines = 100_000  # 10,000 a second would take 10 seconds; these come as fast as they can
    job = job_of(tmp_path, python(FLOOD, str(lines)), ranks=2)
    assert run(job).state == "succeeded"
    for rank in (0, 1):
        data = job.rank_log(rank).read_bytes()
        assert len(data) == flooded(lines)
        assert data.count(b"\r\n") == lines // 2


def test_64_descriptors_are_enough(tmp_path: Path) -> None:
    job = job_of(tmp_path, python("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"), ranks=2)
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.supervise", str(job.root), "1"],
        cwd=CHECKOUT, env=clean_environment(), stderr=subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    )  # fmt: skip
    assert end_of(job, process).state == "succeeded", job.backend_log.read_text()
    assert job.rank_log(1).read_text() == "64\n"


def test_a_job_whose_directory_is_removed_runs_to_its_end(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nprint('x')"
    job = job_of(tmp_path, python(code + "\nos.mkdir(sys.argv[1] + '.done')", str(flag)), ranks=1, kind="local")
    process = supervise(job)
    until(lambda: job.rank_log(0).exists() and job.rank_log(0).read_bytes(), "the start")
    shutil.rmtree(job.root)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2.0)
    flag.touch()
    _, stderr = process.communicate(timeout=30)
    assert (tmp_path / "flag.done").exists(), "nobody ended the program"
    assert b"Traceback" not in stderr
    assert process.returncode == 1, "no mark says how it ended"


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    need("root", os.geteuid() == 0)
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", folder], check=False)
    need("a file system in memory", mounted.returncode == 0)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_ends_no_training_and_hides_no_result(full: Path) -> None:
    code = "import os, sys, time\nfor _ in range(64): os.write(1, b'x' * 65535 + b'\\n')\ntime.sleep(2.0)\nraise SystemExit(5)"
    job = job_of(full, python(code), ranks=1, kind="local")
    process = supervise(job, env={"HVDGRAB_HEARTBEAT_SECONDS": "0.1"})
    _, stderr = process.communicate(timeout=60)
    assert b"Traceback" not in stderr
    assert process.returncode == 5
    mark = read_marks(job.attempt(1), 1)[0]
    assert mark is not None
    assert mark.exit_code == 5
    assert mark.lost_output > 64 * 65536 - SMALL
    end = AttemptEnd.read(job.attempt(1))
    assert end is not None
    assert (end.exit_code, end.cause) == (5, "failure")
    assert f"{mark.lost_output} bytes of its output could not be written to {job.rank_log(0)}" in str(end.reason)


def test_what_a_full_disk_refuses_is_named(full: Path) -> None:
    with (full / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left on device"):
        while True:
            file.write(b"x" * 4096)
    for write in (files.replace_text, files.create_once):
        with pytest.raises(OSError, match="No space left on device") as refused:
            write(full / "plan.json", "{}" * 5000)
        assert refused.value.filename == str(full / "plan.json")
    assert [path.name for path in full.iterdir()] == ["filler"], "nothing half-written is left"
    assert files.obstacle(full) == f"{full} cannot be written: No space left on device"


FILLER = """
import os, sys
if any("launcher.attempt.rank.wrapper" in word for word in sys.orig_argv):
    number = os.open(os.environ["FILL"], os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while True:
            os.write(number, b"x" * 4096)
    except OSError:
        os.close(number)
"""
"""Fills a disk at the start of a rank's wrapper: after the claim, before the first mark."""


@pytest.mark.parametrize(("kind", "ranks"), [("local", 1), ("mpirun", 2)])
def test_a_disk_that_is_full_at_a_ranks_first_mark_is_the_reason_with_its_path(
    full: Path, kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (full.parent / "sitecustomize.py").write_text(FILLER)
    monkeypatch.setenv("PYTHONPATH", str(full.parent))  # the plan takes it over for the ranks
    job = job_of(full, python("raise SystemExit(5)"), ranks=ranks, kind=kind)
    end = run(job, env={"FILL": str(full / "filler")})
    assert (end.state, end.exit_code) == ("failed", 5)
    assert "never started" not in str(end.reason)
    assert f"{job.attempt(1).ranks}" in str(end.reason)
    assert "No space left on device" in str(end.reason)


def test_a_wrapper_whose_supervisor_is_gone_ends_its_program(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, lambda *_: print('told', flush=True)); print('up', flush=True); time.sleep(60)"
    job = job_of(tmp_path, python(code), ranks=1, kind="local")
    process = supervise(job)
    until(lambda: job.rank_log(0).exists() and job.rank_log(0).read_bytes(), "the start")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)

    def ended() -> bool:
        mark = read_marks(job.attempt(1), 1)[0]
        return mark is not None and mark.exit_code == 137

    until(ended, "the end of the rank")
    mark = read_marks(job.attempt(1), 1)[0]
    assert mark is not None
    assert mark.stopped
    assert b"told" in job.rank_log(0).read_bytes()

"""The wrapper, run as a process of its own without MPI."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.attempt.rank.task import find_rank
from launcher.attempt.sweep import marked, sweep
from launcher.jobdir.marks import RankMark, read_marks
from launcher.jobdir.paths import JobPaths
from tests.launcher.helpers import CHECKOUT, clean_environment
from tests.launcher.helpers import plan as planned

ECHO = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])) + b'\\0' + os.environb.get(b'VALUE', b''))"
HOSTILE = [
    "",
    " ",
    "two words",
    "$HOME",
    "`id`",
    "$(id)",
    "'",
    '"',
    "\\",
    "a\nb\n",
    "\r",
    "\t",
    "*",
    "~",
    "-n",
    "--",
    ";id",
    "&& id",
    "|cat",
    ">x",
    "#",
    "!x",
    "%s",
    "{}",
    "é漢🙂",
    "\udcff\udc80",
    "\x1b[31m",
]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobPaths]:
    made = JobPaths(tmp_path / "demo-20250102-030405-00ff")
    made.create()
    made.attempt(1).create()
    yield made
    sweep(made.id, 0.0)


def plan(job: JobPaths, *command: str, workdir: str = "/", secrets: tuple[str, ...] = (), **environment: str) -> None:
    made = planned()
    launch = replace(made.launch, environment={"HVDGRAB_JOB_ID": job.id})
    of_job = replace(made.job, command=command, env=environment, workdir=workdir, secrets=secrets)
    replace(made, job=of_job, launch=launch).write(job.plan)


def start(job: JobPaths, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "launcher.attempt.rank.wrapper", str(job.root), "1"],
        cwd=CHECKOUT, env=clean_environment({"HVDGRAB_JOB_ID": job.id, **(env or {})}), stderr=subprocess.PIPE,
    )  # fmt: skip


def run(job: JobPaths, env: Mapping[str, str] | None = None) -> tuple[int, RankMark | None]:
    process = start(job, env)
    _, stderr = process.communicate(timeout=60)
    assert b"Traceback" not in stderr, stderr
    return process.returncode, read_marks(job.attempt(1), 1)[0]


def wait_for(job: JobPaths, text: bytes) -> None:
    pause = threading.Event()
    for _ in range(400):
        if job.rank_log(0).exists() and text in job.rank_log(0).read_bytes():
            return
        pause.wait(0.05)
    pytest.fail(f"{text!r} never appeared in the log")


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def test_arguments_and_variables_arrive_byte_for_byte(job: JobPaths) -> None:
    arguments = [*HOSTILE, "x" * 100_000]
    plan(job, *python(ECHO), *arguments, VALUE="$HOME\n\udcfe 'x'")
    code, mark = run(job)
    expected = b"\0".join(argument.encode("utf-8", "surrogateescape") for argument in [*arguments, "$HOME\n\udcfe 'x'"])
    assert job.rank_log(0).read_bytes() == expected
    assert code == 0
    assert mark is not None
    assert (mark.exit_code, mark.signal, mark.stopped, mark.rank) == (0, None, False, 0)
    assert mark.ended is not None
    assert mark.ended >= mark.started


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_the_locale_changes_nothing(job: JobPaths, locale: str) -> None:
    plan(job, *python(ECHO), "é\udcff")
    run(job, {"LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"})
    assert job.rank_log(0).read_bytes() == b"\xc3\xa9\xff\0"


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        ("raise SystemExit(7)", 7, None),
        ("raise SystemExit(255)", 255, None),
        ("import os; os._exit(300)", 44, None),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, 9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, 11),
        ("1 / 0", 1, None),
    ],
)
def test_exit_codes_are_the_programs_own(job: JobPaths, body: str, code: int, number: int | None) -> None:
    plan(job, *python(body))
    got, mark = run(job)
    assert mark is not None
    assert (got, mark.exit_code, mark.signal, mark.stopped) == (code, code, number, False)


@pytest.mark.parametrize(("command", "words"), [("no-such-program", "not found"), ("/etc/passwd", "not executable")])
def test_programs_that_cannot_be_started(job: JobPaths, command: str, words: str) -> None:
    plan(job, command)
    got, mark = run(job)
    assert got == 127
    assert mark is not None
    assert words in (mark.error or "")
    assert words.encode() in job.rank_log(0).read_bytes()


def test_a_program_that_the_system_refuses(job: JobPaths, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(b"\x7fELFnonsense")
    path.chmod(0o755)
    plan(job, str(path))
    assert run(job)[0] == 126


def test_programs_are_found_from_the_ranks_own_directory_and_path(job: JobPaths, tmp_path: Path) -> None:
    script = tmp_path / "hello"
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o755)
    plan(job, "./hello", workdir=str(tmp_path))
    assert run(job)[0] == 0
    plan(job, "hello", workdir="/", PATH=str(tmp_path) + ":/usr/bin:/bin")
    assert run(job)[0] == 0
    assert job.rank_log(0).read_text() == f"{tmp_path}\n/\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_program_and_are_noted(job: JobPaths, number: signal.Signals) -> None:
    plan(job, *python(f"import signal, time; signal.signal({int(number)}, lambda *_: exit(9)); print('up'); time.sleep(60)"))
    process = start(job, {"PYTHONUNBUFFERED": "1"})
    wait_for(job, b"up")
    process.send_signal(number)
    assert process.wait(20) == 9
    assert process.stderr is not None
    process.stderr.close()
    mark = read_marks(job.attempt(1), 1)[0]
    assert mark is not None
    assert (mark.exit_code, mark.stopped) == (9, True)


def test_what_ignores_the_signal_is_killed_with_its_group(job: JobPaths) -> None:
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.fork(); os.write(1, b'up\\n'); time.sleep(60)"
    plan(job, *python(code))
    process = start(job, {"PYTHONUNBUFFERED": "1"})
    wait_for(job, b"up\nup")
    process.terminate()
    assert process.wait(20) == 137
    assert process.stderr is not None
    process.stderr.close()
    assert marked(job.id) == []


def test_what_leaves_the_group_is_ended_with_the_program(job: JobPaths) -> None:
    code = "import os, signal, time\nif os.fork() == 0:\n os.setsid(); signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    plan(job, *python(code + "\nelse: time.sleep(0.5)"))
    assert run(job, {"PYTHONUNBUFFERED": "1"})[0] == 0
    assert marked(job.id) == [], "it held the pipe open, and the wrapper ended it"


def test_the_sweep_ends_what_carries_the_mark(job: JobPaths) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    environment = clean_environment({"HVDGRAB_JOB_ID": job.id, "HVDGRAB_ATTEMPT": "1"})
    with subprocess.Popen(python(code), env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [entry.pid for entry in marked(job.id, attempt=1)] == [process.pid]
        assert marked(job.id, attempt=2) == []
        assert sweep(job.id, 0.3) == (1, [])
        assert marked(job.id) == []


def test_output_is_not_delayed_and_secrets_are_hidden(job: JobPaths) -> None:
    plan(job, *python("import os, time; print('key', os.environ['TOKEN']); time.sleep(60)"), secrets=("TOKEN",))
    process = start(job, {"TOKEN": "hunter2hunter2", "PYTHONUNBUFFERED": "1"})
    wait_for(job, b"key ***\n")
    process.terminate()
    process.communicate(timeout=20)
    assert b"hunter2" not in job.rank_log(0).read_bytes()


def test_a_flood_of_output_is_kept_whole(job: JobPaths) -> None:
    plan(job, *python("import sys\nfor i in range(100000): sys.stdout.write('line %d\\n' % i)"))
    assert run(job)[0] == 0
    assert job.rank_log(0).read_bytes() == b"".join(b"line %d\n" % index for index in range(100_000))


def test_a_removed_job_directory_does_not_end_the_rank(job: JobPaths) -> None:
    code = "import shutil, sys; shutil.rmtree(sys.argv[1]); print('x'); raise SystemExit(5)"
    plan(job, *python(code), str(job.root))
    process = start(job)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 5
    assert b"its mark cannot be written" in stderr
    assert b"Traceback" not in stderr


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_a_job_directory_without_a_plan(job: JobPaths, text: str | None) -> None:
    if text is not None:
        job.plan.write_text(text)
    process = start(job)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in (126, 127)
    assert b"Traceback" not in stderr


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, 0),
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}, 3),
        ({"PMIX_RANK": "2"}, 2),
        ({"PMI_RANK": "1"}, 1),
        ({"SLURM_PROCID": "12"}, 12),
        ({"PMI_RANK": "x", "SLURM_PROCID": "4"}, 4),
        ({"PMI_RANK": "-1"}, 0),
    ],
)
def test_rank(variables: dict[str, str], rank: int) -> None:
    assert find_rank(variables) == rank


def test_the_wrapper_imports_little() -> None:
    code = "import sys, launcher.attempt.rank.wrapper; print({'pydantic', 'yaml', 'typer', 'rich', 'psutil'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment(), capture_output=True, check=True)
    assert done.stdout.strip() == b"set()"

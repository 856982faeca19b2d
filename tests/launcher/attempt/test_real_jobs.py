"""Whole jobs through the real command, with the real mpirun and the real horovodrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from launcher.attempt.sweep import marked
from launcher.cli.directory import view_of
from launcher.jobdir.paths import list_jobs
from tests.launcher.attempt.rank.test_wrapper import ECHO, HOSTILE
from tests.launcher.helpers import clean_environment, command_line, events, launch, need_mpi, two_ranks

KINDS = ["mpirun", "horovodrun"]
REDUCE = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
print("rank", world.rank, "sum", world.allreduce(world.rank + 1))
world.Barrier()
code = int(sys.argv[1 + world.rank])
"""


mostly_mpirun = pytest.mark.parametrize("kind", ["mpirun", pytest.param("horovodrun", marks=pytest.mark.soak)], indirect=True)
"""For what lies before the backend: horovodrun takes seconds longer and calls the same mpirun."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    need_mpi(horovod=request.param == "horovodrun")
    return str(request.param)


def test_mpi_works_in_the_ranks_and_arguments_arrive_byte_for_byte(kind: str, tmp_path: Path) -> None:
    code = REDUCE.replace("code = int(sys.argv[1 + world.rank])", "sys.stdout.flush()\n") + ECHO
    arguments = [*HOSTILE, "x" * 100_000]
    ran = launch(tmp_path, two_ranks(kind, code, *arguments, env={"VALUE": "$HOME\n`id` 'é'"}))
    assert (ran.code, ran.result["state"], ran.result["backend"]) == (0, "succeeded", kind)
    expected = b"\0".join(argument.encode("utf-8", "surrogateescape") for argument in [*arguments, "$HOME\n`id` 'é'"])
    for rank in (0, 1):
        first, _, rest = ran.log(rank).partition(b"\n")
        assert first == f"rank {rank} sum 3".encode()
        assert rest == expected


def test_the_jobs_exit_code_is_the_first_failing_ranks(kind: str, tmp_path: Path) -> None:
    codes, expected, rank = (("0", "7"), 7, 1) if kind == "mpirun" else (("9", "0"), 9, 0)
    code = REDUCE + "print('last words of', world.rank)\nMPI.Finalize()\nsys.exit(code)"
    ran = launch(tmp_path, two_ranks(kind, code, *codes))
    assert (ran.code, ran.result["exit_code"], ran.result["state"]) == (expected, expected, "failed")
    assert ran.result["first_failing_rank"] == rank
    assert f"last words of {rank}" in ran.stderr
    assert view_of(ran.job).exit_code == expected
    exits = {(event["rank"], event["exit_code"]) for event in events(ran.job) if event["event"] == "rank-exit"}
    assert (rank, expected) in exits


def test_a_rank_that_raises_while_another_waits_ends_the_job_with_its_words(tmp_path: Path) -> None:
    need_mpi()
    code = "from mpi4py import MPI\nimport sys\nw = MPI.COMM_WORLD\nif w.rank == 1: sys.exit('boom in the middle')\nw.Barrier()"
    ran = launch(tmp_path, two_ranks("mpirun", "import mpi4py; mpi4py.rc.finalize = False\n" + code), timeout=60)
    assert ran.code == 1
    assert ran.stderr.index("boom in the middle") < ran.stderr.index("failed after")
    assert marked(ran.result["id"]) == []


@mostly_mpirun
def test_secrets_are_nowhere(kind: str, tmp_path: Path) -> None:
    value = "hunter2-$HOME;'x'"
    code = (
        "import os, subprocess, sys\nprint('the key is', os.environ['API_TOKEN'])\n"
        "print(os.environ['API_TOKEN'], file=sys.stderr)\n"
        "assert os.environ['API_TOKEN'] == 'hunter2-' + chr(36) + \"HOME;'x'\"\n"
        "print(subprocess.run(['ps', '-eww', '-o', 'args'], capture_output=True, text=True).stdout)"
    )
    ran = launch(tmp_path, two_ranks(kind, code, secrets=["API_TOKEN"]), env={"API_TOKEN": value})
    assert ran.code == 0, ran.stderr
    for rank in (0, 1):
        assert b"the key is ***\n***\n" in ran.log(rank)
        assert b"launcher.attempt.rank.wrapper" in ran.log(rank), "ps did show the command lines"
    texts = [path.read_bytes() for path in [*tmp_path.rglob("*")] if path.is_file()]
    assert not any(b"hunter2" in text for text in texts if b"assert os.environ" not in text)
    assert not any(b"hunter2-$" in text for text in texts)
    assert "hunter2" not in ran.stderr + json.dumps(ran.result)


@mostly_mpirun
def test_variables_of_an_outer_job_do_not_reach_the_ranks(kind: str, tmp_path: Path) -> None:
    outer = {
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "64",
        "SLURM_NODELIST": "elsewhere",
        "PMI_RANK": "5",
        "PMIX_RANK": "5",
        "OMPI_COMM_WORLD_RANK": "5",
        "OMPI_COMM_WORLD_SIZE": "9",
        "OMPI_MCA_btl": "nonsense",
        "HVDGRAB_JOB_ID": "outer",
    }
    code = REDUCE + "import os\nprint([n for n in os.environ if n[:6] == 'SLURM_'], os.environ.get('OMPI_MCA_btl') == 'nonsense')"
    ran = launch(tmp_path, two_ranks(kind, code, "0", "0"), env=outer)
    assert ran.code == 0, ran.stderr
    assert ran.log(1) == b"rank 1 sum 3\n[] False\n"


STUBBORN = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("up", flush=True)
time.sleep(120)
"""


def until(condition: object, what: str) -> None:
    pause = threading.Event()
    for _ in range(600):
        if condition():  # type: ignore[operator]
            return
        pause.wait(0.1)
    pytest.fail(f"{what} did not happen within a minute")


def test_no_orphan_is_left_by_an_interrupt(kind: str, tmp_path: Path) -> None:
    number = signal.SIGINT if kind == "mpirun" else signal.SIGTERM
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(two_ranks(kind, STUBBORN)))
    process = subprocess.Popen(
        command_line(str(file), "--foreground", "--json", "--jobs-dir", str(tmp_path / "jobs")),
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def all_up() -> bool:
        logs = [job.rank_log(rank) for job in list_jobs(tmp_path / "jobs") for rank in (0, 1)]
        return len(logs) == 2 and all(log.exists() and log.read_bytes().count(b"up") == 2 for log in logs)

    until(all_up, "the start of all processes")
    (job,) = list_jobs(tmp_path / "jobs")
    assert len(marked(job.id)) >= 9, "four stubborn ones, two wrappers of two processes each, and mpirun"
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert marked(job.id) == []
    assert json.loads(stdout)["state"] == "cancelled"
    assert "Traceback" not in stderr
    record = view_of(job)
    assert (record.state, record.exit_code) == ("cancelled", 130)


@pytest.mark.parametrize("victim", ["mpirun", "wrapper"])
def test_no_orphan_is_left_when_a_part_is_killed(tmp_path: Path, victim: str) -> None:
    need_mpi()
    code = STUBBORN.replace("os.fork() == 0", "os.environ['OMPI_COMM_WORLD_RANK'] == '0' and os.fork() == 0")
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(two_ranks("mpirun", code)))
    process = subprocess.Popen(
        command_line(str(file), "--foreground", "--json", "--jobs-dir", str(tmp_path / "jobs")),
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: len(list(tmp_path.glob("jobs/*/attempts/0001/ranks/rank-*.json"))) == 2, "the start")
    (job,) = list_jobs(tmp_path / "jobs")
    until(lambda: job.rank_log(0).read_bytes().count(b"up") == 2 and b"up" in job.rank_log(1).read_bytes(), "the start")
    wrapper = json.loads(job.attempt(1).rank_mark(1).read_text())["wrapper_pid"]
    started = next(event["pid"] for event in events(job) if event["event"] == "started")
    os.kill(started if victim == "mpirun" else wrapper, signal.SIGKILL)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == json.loads(stdout)["exit_code"] != 0
    assert json.loads(stdout)["state"] == "failed"
    assert marked(job.id) == []


@pytest.mark.parametrize(("shim_code", "rank_code", "expected"), [(0, 7, 7), (5, 0, 5)])
def test_a_lying_mpirun_does_not_make_a_success(tmp_path: Path, shim_code: int, rank_code: int, expected: int) -> None:
    shim = tmp_path / "bin" / "mpirun"
    shim.parent.mkdir()
    shim.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.8'; exit 0; }\n"
        'while [ "$2" != -m ]; do shift; done\n'
        'OMPI_COMM_WORLD_RANK=0 "$@"; OMPI_COMM_WORLD_RANK=1 "$@"\n'
        f"exit {shim_code}\n"
    )
    shim.chmod(0o755)
    code = f"import os; raise SystemExit({rank_code} if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 0)"
    ran = launch(tmp_path, two_ranks("mpirun", code), env={"PATH": f"{shim.parent}:{os.environ['PATH']}"})
    assert (ran.code, ran.result["state"], ran.result["exit_code"]) == (expected, "failed", expected)


def test_an_mpirun_that_starts_nothing_is_a_failure_with_its_own_words(tmp_path: Path) -> None:
    need_mpi()
    data = two_ranks("mpirun", "pass")
    data["backend"]["extra_args"] = ["--no-such-option"]
    ran = launch(tmp_path, data)
    assert ran.code not in (0, 2)
    assert "no-such-option" in ran.stderr
    assert re.search(r"ranks 0, 1 never started", ran.stderr)


def test_horovod_starts_in_the_ranks(tmp_path: Path) -> None:
    need_mpi(horovod=True)
    code = "import horovod.torch as hvd; hvd.init(); print(hvd.rank(), hvd.size(), hvd.local_size())"
    ran = launch(tmp_path, two_ranks("auto", code))
    assert (ran.code, ran.log(0), ran.log(1)) == (0, b"0 2 2\n", b"1 2 2\n")


def test_one_local_rank_without_mpi(tmp_path: Path) -> None:
    code = "import json, os; print(json.dumps({n: v for n, v in os.environ.items() if n.startswith(('HVDGRAB', 'OMP'))}))"
    ran = launch(tmp_path, {"command": ["python", "-c", code], "grab": {"seed": 3}}, env={"HVDGRAB_DATA": "/data"})
    seen = json.loads(ran.log())
    assert ran.code == 0
    assert seen["HVDGRAB_JOB_ID"] == ran.result["id"]
    assert seen["HVDGRAB_JOB_DIR"] == ran.result["dir"]
    assert json.loads(seen["HVDGRAB_GRAB"]) == {"seed": 3}
    assert seen["HVDGRAB_DATA"] == "/data"
    assert int(seen["OMP_NUM_THREADS"]) == len(os.sched_getaffinity(0))


def test_a_users_module_called_launcher_does_not_shadow_ours(tmp_path: Path) -> None:
    package = tmp_path / "project" / "launcher"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('of the user')")
    ran = launch(tmp_path, {"command": ["python", "-c", "import launcher"], "workdir": "project"})
    assert (ran.code, ran.log()) == (0, b"of the user\n")


def test_progress_and_report(tmp_path: Path) -> None:
    line = '{"epoch": 0, "epochs": 1, "train_loss": 0.25, "herding_l2_vs_random": 0.8, "seconds": 1.0}'
    code = f"import os; open(os.environ['HVDGRAB_JOB_DIR'] + '/metrics.jsonl', 'w').write({line!r} + chr(10))"
    ran = launch(tmp_path, {"command": ["python", "-c", code]})
    assert ran.code == 0
    assert "epoch 1/1  loss 0.2500  bound 0.80 of random" in ran.stderr
    assert ran.job.report.exists() or "the report could not be made" in ran.stderr, "a failing report is a warning"

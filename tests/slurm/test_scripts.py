from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real import ROOT, need, need_horovod
from tests.slurm.cluster import SEARCH, Cluster
from tests.slurm.conftest import need_pmix
from tests.slurm.driver import COUNT
from tests.slurm.test_jobs import WORLD

SCRIPTS = sorted((ROOT / "slurm").glob("*.sh"))
NOT_RUN = ("gpus.sh", "container.sh")
DIGITS = ["python", "-m", "hvdgrab.examples.digits", "--epochs", "2", "--batch-size", "64", "--lr", "0.1"]
SLOW = 900.0
"""Seconds after which a training on a busy machine is given up."""
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def submit(cluster: Cluster, folder: Path, *words: str, seconds: float = SLOW, **variables: str) -> tuple[int, str]:
    """Submit from a folder and wait; returns the exit code and the logs."""
    settings = [f"{name}={value}" for name, value in {"VENV": sys.prefix, **ROOT_MAY, **variables}.items()]
    done = cluster.run("env", *settings, "sbatch", "--wait", *words, timeout=seconds, cwd=folder)
    logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
    return done.returncode, f"{done.stdout}{done.stderr}\n{logs}"


def test_every_script_is_in_the_list_and_clean():
    need("shellcheck", shutil.which("shellcheck") is not None)
    table = (ROOT / "slurm" / "README.md").read_text()
    for script in SCRIPTS:
        assert f"`{script.name}`" in table
        assert os.access(script, os.X_OK)
    done = subprocess.run(["shellcheck", *map(str, SCRIPTS)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_slurm_accepts_every_script(cluster: Cluster, script: Path) -> None:
    done = cluster.run("sbatch", "--test-only", str(script))
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr or "hetjob" in script.name or "het" in script.name


@pytest.mark.parametrize("script", NOT_RUN)
def test_scripts_that_are_not_run_here_say_so(script):
    assert "`sbatch --test-only` alone" in (ROOT / "slurm" / script).read_text()


def test_one_node_runs_what_it_is_given(cluster: Cluster, tmp_path: Path) -> None:
    need_pmix()
    code, said = submit(cluster, tmp_path, str(ROOT / "slurm" / "one_node.sh"), "python", "-c", WORLD)
    assert code == 0, said
    assert "2 ranks on n1 (srun --mpi=pmix gives 2 processes one world)" in said
    assert "rank 1 of 2 sum 2" in said


def test_the_container_script_starts_every_rank_through_the_container_program(cluster: Cluster, tmp_path: Path) -> None:
    need_pmix()
    shims = tmp_path / "bin"
    shims.mkdir()
    shim = shims / "apptainer"
    shim.write_text('#!/bin/sh\nwhile [ "$1" != image.sif ]; do shift; done\nshift\nIN_IMAGE=1 exec "$@"\n')
    shim.chmod(0o755)
    script = str(ROOT / "slurm" / "container.sh")
    inside = "import os; os.environ['IN_IMAGE']\n" + WORLD
    code, said = submit(cluster, tmp_path, script, "image.sif", sys.executable, "-c", inside, PATH=f"{shims}:{SEARCH}")
    assert code == 0, said
    assert said.count(" of 4 sum 4") == 4
    code, said = submit(cluster, tmp_path, script, "image.sif")
    assert code == 2
    assert "usage: sbatch slurm/container.sh IMAGE COMMAND" in said


@pytest.mark.soak
def test_the_script_for_gpus_says_at_once_that_horovod_lacks_nccl(cluster: Cluster, tmp_path: Path) -> None:
    need_horovod()
    import horovod.torch as hvd

    if hvd.nccl_built():
        pytest.skip("this Horovod has NCCL")
    code, said = submit(cluster, tmp_path, str(ROOT / "slurm" / "gpus.sh"))
    assert code == 1, said
    assert said.rstrip().endswith("this Horovod has no NCCL: make setup GPU=nccl")


def test_a_missing_environment_is_one_sentence(cluster: Cluster, tmp_path: Path) -> None:
    code, said = submit(cluster, tmp_path, str(ROOT / "slurm" / "one_node.sh"), VENV="/nowhere")
    assert code == 2
    assert "no environment in /nowhere: submit from where it lies" in said


def test_an_array_runs_each_variant_in_its_own_directory(cluster: Cluster, tmp_path: Path) -> None:
    show = "from os import environ as e; import json; order = json.loads(e['HVDGRAB_GRAB'])['order']\n"
    show += "open(e['HVDGRAB_JOB_DIR'] + '/seen', 'w').write(order)"
    code, said = submit(cluster, tmp_path, str(ROOT / "slurm" / "variants_array.sh"), "python", "-c", show)
    assert code == 0, said
    assert [path.read_text() for path in sorted(tmp_path.glob("jobs/*/*/seen"))] == ["reshuffle", "rr", "cd-grab"]
    code, said = submit(cluster, tmp_path, "--array=7", str(ROOT / "slurm" / "variants_array.sh"), "true")
    assert code == 2, said
    assert "there is no variant 7: the variants are 0 to 2" in said


@pytest.mark.soak
def test_the_requeue_script_goes_on_until_the_training_is_done(cluster: Cluster, tmp_path: Path) -> None:
    limits = {"TRAIN_SECONDS": "12", "SAVE_SECONDS": "5", "HVDGRAB_PROGRESS": str(tmp_path / "progress")}
    command = [str(ROOT / "slurm" / "requeue.sh"), "python", "-c", COUNT, "90", "0.2"]
    code, said = submit(cluster, tmp_path, *command, **limits)
    assert code == 0, said
    (job,) = (tmp_path / "jobs").iterdir()
    assert [(job / f"count-{rank}").read_text() for rank in (0, 1)] == ["90", "90"]
    assert said.count("back into the queue") >= 1
    assert "starts at 0" in said
    assert said.count("starts at 0") < said.count("starts at")


@pytest.mark.soak
def test_the_requeue_script_goes_round_for_no_training_that_would_get_no_further(cluster: Cluster, tmp_path: Path) -> None:
    requeue = str(ROOT / "slurm" / "requeue.sh")
    code, said = submit(cluster, tmp_path, requeue)
    assert code == 2, said
    assert "usage: sbatch slurm/requeue.sh COMMAND" in said
    done = "import hvdgrab, signal, time; signal.signal(signal.SIGUSR1, lambda *_: None); time.sleep(16); hvdgrab.mark_finished()"
    deaf = "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: None); time.sleep(60)"
    forgetful = "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); time.sleep(60)"
    trainings = {
        "import time; time.sleep(60)": "USR1 ended the training, which must save itself then",
        forgetful: "nothing was saved below",
        done: "start 1 is over, and the training is done",
        deaf: "not saved within 2 s, and killed",
    }
    for number, (training, words) in enumerate(trainings.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_seconds = "20" if training == done else "2"
        code, said = submit(cluster, folder, requeue, "python", "-c", training, TRAIN_SECONDS="15", SAVE_SECONDS=save_seconds)
        assert code == (0 if training == done else 1), said
        assert words in said
        assert "back into the queue" not in said.replace("not put back into the queue", "")

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgrab.examples.data import WIKITEXT2
from tests.examples.real_data import real_data
from tests.real import ROOT, mpirun, need, need_horovod
from tests.slurm.cluster import Cluster, wait_for
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


def metrics(folder: Path) -> list[list[dict[str, object]]]:
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.glob("jobs/**/metrics.jsonl"))]


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


def same_orders(cluster: Cluster, folder: Path, script: str, ranks: int, training: list[str], *options: str) -> None:
    """A script's orders are those of the same training under mpirun on this host."""
    code, said = submit(cluster, folder, *options, str(ROOT / "slurm" / script), *training)
    assert code == 0, said
    (found,) = metrics(folder)
    plain = folder / "plain"
    plain.mkdir()
    settings = (ROOT / "slurm" / script).read_text().split("settings='")[1].split("'")[0]
    variables = {"HVDGRAB_GRAB": settings, "HVDGRAB_JOB_DIR": str(plain), "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = mpirun(ranks, training[1:], SLOW, variables)
    assert done.returncode == 0, done.stderr
    expected = [json.loads(line) for line in (plain / "metrics.jsonl").read_text().splitlines()]
    assert [line["order_hash"] for line in found] == [line["order_hash"] for line in expected]


@pytest.mark.soak
def test_several_nodes_order_as_under_mpirun(far_cluster: Cluster, tmp_path: Path) -> None:
    need_horovod()
    same_orders(far_cluster, tmp_path, "several_nodes.sh", 2, DIGITS, "--ntasks-per-node=1")


@pytest.mark.soak
def test_one_node_orders_as_under_mpirun(far_cluster: Cluster, tmp_path: Path) -> None:
    need_horovod()
    same_orders(far_cluster, tmp_path, "one_node.sh", 2, DIGITS)


@pytest.mark.soak
def test_the_lstm_on_two_nodes_with_sketch_and_hierarchy_orders_as_under_mpirun(far_cluster: Cluster, tmp_path: Path) -> None:
    need_horovod()
    real_data(WIKITEXT2)
    training = ["python", "-m", "hvdgrab.examples.lstm_wikitext2", "--epochs", "2", "--batch-size", "4", "--lr", "5"]
    same_orders(far_cluster, tmp_path, "several_nodes.sh", 4, training)


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
    limits = {"TRAIN_SECONDS": "8", "SAVE_SECONDS": "5", "HVDGRAB_PROGRESS": str(tmp_path / "progress")}
    command = [str(ROOT / "slurm" / "requeue.sh"), "python", "-c", COUNT, "50", "0.2"]
    code, said = submit(cluster, tmp_path, *command, **limits)
    assert code == 0, said
    (job,) = (tmp_path / "jobs").iterdir()
    assert [(job / f"count-{rank}").read_text() for rank in (0, 1)] == ["50", "50"]
    assert said.count("back into the queue") >= 1
    assert "starts at 0" in said
    assert said.count("starts at 0") < said.count("starts at")
    code, said = submit(cluster, tmp_path, str(ROOT / "slurm" / "requeue.sh"))
    assert code == 2, said


@pytest.mark.soak
@pytest.mark.parametrize("script", ["order_server.sh", "order_server_het.sh"])
def test_an_order_server_beside_the_ranks(far_cluster: Cluster, tmp_path: Path, script: str) -> None:
    need_horovod()
    need_pmix()
    code, said = submit(far_cluster, tmp_path, str(ROOT / "slurm" / script), *DIGITS)
    assert code == 0, said
    (found,) = metrics(tmp_path)
    assert [line["epoch"] for line in found] == [0, 1]
    assert all(line["pairs"] for line in found)
    wait_for(lambda: not far_cluster.run("squeue", "-h").stdout, "the end of the job", 30)

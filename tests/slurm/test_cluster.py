from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.real import ROOT
from tests.slurm.cluster import Cluster, members, wait_for
from tests.slurm.conftest import need_slurm

START = "import time; from tests.slurm.cluster import Cluster\nc = Cluster.start(); print(c.root, flush=True); time.sleep(60)"


def test_jobs_run_on_both_nodes(cluster: Cluster) -> None:
    done = cluster.run("srun", "-N2", "-n4", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_PROCID")
    assert done.returncode == 0, done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"n1", "n2"}


def test_two_clusters_at_once_know_nothing_of_each_other(cluster: Cluster, own_cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 30").stdout.strip()
    assert job
    assert own_cluster.run("squeue", "-h").stdout == ""
    own_cluster.stop()
    assert not own_cluster.root.exists()
    assert cluster.run("squeue", "-h", "-j", job).stdout.strip()


def test_nothing_is_left_of_a_killed_test_run() -> None:
    need_slurm()
    victim = subprocess.Popen([sys.executable, "-c", START], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    root = Path(victim.stdout.readline().strip())
    assert root.is_dir()
    assert {process.name() for process in members(root)} >= {"slurmctld", "slurmd", "munged"}
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    wait_for(lambda: not root.exists() and not members(root), "the guard", 20)


def test_people_bring_it_up_and_down(tmp_path: Path) -> None:
    need_slurm()
    folder = Path(tempfile.mkdtemp(prefix="hs-"))  # short: munge's socket lies below, and clusters of other people do not
    environment = {**os.environ, "TMPDIR": str(folder)}

    def call(*words: str) -> str:
        return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    try:
        said = call(sys.executable, "-m", "tests.slurm.cluster", "up")
        (root,) = folder.iterdir()
        assert f"export SLURM_CONF={root}/slurm.conf" in said
        environment["SLURM_CONF"] = str(root / "slurm.conf")
        assert len(call("srun", "-N2", "hostname").splitlines()) == 2
        assert call(sys.executable, "-m", "tests.slurm.cluster", "down") == f"ended {root}\n"
        assert (members(root), list(folder.iterdir())) == ([], [])
    finally:
        call(sys.executable, "-m", "tests.slurm.cluster", "down")
        folder.rmdir()

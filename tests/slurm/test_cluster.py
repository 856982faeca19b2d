from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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


class ByHand:
    """``make slurm-up`` and ``make slurm-down``, with a directory for clusters that nobody else's lie in."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hs-"))  # short: munge's socket lies below
        self.environment = {**os.environ, "TMPDIR": str(self.folder)}

    def call(self, *words: str) -> str:
        return subprocess.run(
            words, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def type(self, what: str) -> str:
        return self.call(sys.executable, "-m", "tests.slurm.by_hand", what)

    def roots(self) -> list[Path]:
        return sorted(self.folder.iterdir())


@pytest.fixture
def by_hand() -> Iterator[ByHand]:
    need_slurm()
    person = ByHand()
    yield person
    person.type("down")
    person.folder.rmdir()


def test_people_bring_it_up_and_down(by_hand: ByHand) -> None:
    assert by_hand.type("down") == "no cluster is up\n"
    said = by_hand.type("up")
    (root,) = by_hand.roots()
    assert f"source {root}/environment" in said
    use = f"source {root}/environment && srun -N2 printenv SLURM_CONF"
    assert by_hand.call("bash", "-c", use).splitlines() == [f"{root}/slurm.conf"] * 2
    assert by_hand.type("up").startswith(f"SLURM is up already. In any terminal:\n\n  source {root}/environment")
    assert by_hand.roots() == [root]
    assert by_hand.type("down") == f"ended {root}\n"
    assert (members(root), by_hand.roots()) == ([], [])


def test_what_a_dead_cluster_left_is_replaced(by_hand: ByHand) -> None:
    by_hand.type("up")
    (root,) = by_hand.roots()
    next(process for process in members(root) if process.name() == "slurmctld").kill()
    said = by_hand.type("up")
    assert said.startswith(f"SLURM in {root} does not answer: ended\nSLURM is up: 2 nodes")
    (another,) = by_hand.roots()
    assert another != root
    assert members(root) == []

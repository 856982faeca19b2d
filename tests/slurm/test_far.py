from __future__ import annotations

import re
import sys

from tests.slurm.cluster import Cluster
from tests.slurm.conftest import need_pmix
from tests.slurm.test_jobs import WORLD


def test_ranks_on_hosts_with_a_network_between_them(far_cluster: Cluster) -> None:
    need_pmix()
    by_mpirun = ("salloc", "-N2", "-n4", "mpirun", "--allow-run-as-root", "--bind-to", "none")
    for start in (("srun", "--mpi=pmix", "-N2", "-n4"), by_mpirun):
        done = far_cluster.run(*start, sys.executable, "-c", WORLD + "w.Barrier()")
        assert done.returncode == 0, done.stdout + done.stderr
        assert sorted(re.findall(r"rank \d of 4 sum 4", done.stdout)) == [f"rank {rank} of 4 sum 4" for rank in range(4)]

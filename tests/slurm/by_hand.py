"""A cluster that stays, for people: ``python -m tests.slurm.by_hand up``, ``down`` (``make slurm-up``, ``make slurm-down``)."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.slurm.cluster import BY_HAND, Cluster, ClusterError, end, find, pmix_present


def running() -> list[Path]:
    """Directories of this user's clusters that were brought up with ``up``, or half of the way."""
    found = Path(tempfile.gettempdir()).glob(f"hvdgrab-slurm-*/{BY_HAND}")
    return sorted(path.parent for path in found if path.stat().st_uid == os.getuid())


def answers(root: Path) -> bool:
    """Whether a cluster's controller lives and a node of it takes work."""
    sinfo = find("sinfo")
    if sinfo is None:
        return False
    environment = {**os.environ, "SLURM_CONF": str(root / "slurm.conf")}
    argv = [sinfo, "-h", "-p", "main", "-t", "idle,alloc,mix", "-o", "%n"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode == 0 and bool(done.stdout.split())


def up() -> int:
    """Start a cluster that stays, unless there is one, and say how to use it."""
    for root in running():
        if answers(root):
            print("SLURM is up already. ", end="")
            explain(root)
            return 0
        print(f"SLURM in {root} does not answer: ended")
        end(root)
    try:
        cluster = Cluster.start(guarded=False)
    except ClusterError as error:
        print(f"the cluster did not come up: {error}", file=sys.stderr)
        return 1
    lines = [f"export {name}={shlex.quote(value)}" for name, value in cluster.variables().items()]
    (cluster.root / "environment").write_text("\n".join(lines) + "\n")
    print(f"SLURM is up: 2 nodes of {cluster.layout.cpus} pretended cores, partitions main, short, spare, closed. ", end="")
    explain(cluster.root)
    return 0


def explain(root: Path) -> None:
    """How a cluster is used."""
    print(f"In any terminal:\n\n  source {root}/environment\n  sinfo\n  sbatch slurm/one_node.sh\n")
    if not pmix_present():
        print("Ranks are started by mpirun: `srun --mpi=pmix` needs Debian's libpmix-dev besides.")
    print(f"Logs: {root}/log\nEnd it with: make slurm-down")


def down() -> int:
    """End every cluster that ``up`` started."""
    roots = running()
    for root in roots:
        end(root)
        print(f"could not be removed: {root}" if root.exists() else f"ended {root}")
    if not roots:
        print("no cluster is up")
    return 0


def main(argv: Sequence[str]) -> int:
    """``up`` or ``down``."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.by_hand", description="A real SLURM of two virtual nodes.")
    parser.add_argument("what", choices=("up", "down"))
    return {"up": up, "down": down}[parser.parse_args(argv).what]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/bin/bash
# A training on several nodes, with payloads of 4 KiB a pair, gathered on each node before they cross the network.
#
#   sbatch slurm/several_nodes.sh
#   sbatch --nodes=4 --ntasks-per-node=8 slurm/several_nodes.sh python train.py
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-several-nodes
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# So many nodes, so many ranks on each, and so many cores for each rank. Evenly, so that no node waits for a fuller one.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
# SLURM kills the job after this time (days-hours:minutes:seconds).
#SBATCH --time=01:00:00
# What your site asks for besides; remove the first # of those that you need.
##SBATCH --partition=cpu
##SBATCH --account=my-project
##SBATCH --mem=16G

set -euo pipefail

# The software: your site's modules, and the environment that `make setup` makes. Nothing is fetched on a compute node.
# module load openmpi
venv=${VENV:-$PWD/.venv}
# shellcheck source=/dev/null
source "$venv/bin/activate" || { echo "no environment in $venv: submit from where it lies, or: VENV=... sbatch ..." >&2; exit 2; }

# Over which network the ranks talk, where the nodes have several: a name or a subnet (Open MPI), or UCX's devices.
# export OMPI_MCA_btl_tcp_if_include=10.1.0.0/16
# export UCX_NET_DEVICES=mlx5_0:1

# Where metrics.jsonl and checkpoints go; `python -m hvdgrab.report` makes a page of it.
export HVDGRAB_JOB_DIR="$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "results: $HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0, "compression": {"kind": "sketch"},
           "communication": {"algorithm": "hierarchical"}}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    command=(python -m hvdgrab.examples.lstm_wikitext2 --epochs 40 --batch-size 4 --lr 5)
fi

# By srun with the PMI that works with this MPI, or by mpirun where none does; the log says which. To decide yourself:
# MPI_TYPE=pmix sbatch ..., or another type of `srun --mpi=list`, or mpirun.
exec python -m launcher.slurm.ranks --mpi "${MPI_TYPE:-auto}" -- "${command[@]}"

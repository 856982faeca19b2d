#!/bin/bash
# A training with a dedicated order server on a node of another kind: a heterogeneous job, whose second part is one process on a
# node without GPUs. The training must call hvdgrab.init() instead of hvd.init().
#
#   sbatch slurm/order_server_het.sh
#   sbatch slurm/order_server_het.sh python train.py
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-order-server-het
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# The first part trains: nodes, ranks, cores for a rank. On a site with GPUs: --partition=gpu --gpus-per-task=1 here.
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
# SLURM kills the job after this time (days-hours:minutes:seconds).
#SBATCH --time=01:00:00
# What your site asks for besides; remove the first # of those that you need.
##SBATCH --partition=cpu
##SBATCH --account=my-project
##SBATCH --mem=16G
#
# The second part serves: one process, on a node of its own. --partition=cpu, and cores for the balancing, would stand here.
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1

set -euo pipefail

# The software: your site's modules, and the environment that `make setup` makes. Nothing is fetched on a compute node.
# module load openmpi
venv=${VENV:-$PWD/.venv}
# shellcheck source=/dev/null
source "$venv/bin/activate" || { echo "no environment in $venv: submit from where it lies, or: VENV=... sbatch ..." >&2; exit 2; }

# Where metrics.jsonl and checkpoints go; `python -m hvdgrab.report` makes a page of it.
export HVDGRAB_JOB_DIR="$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "results: $HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0, "coordinator": "server"}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    command=(python -m hvdgrab.examples.digits --epochs 30 --batch-size 8 --lr 0.1)
fi

# Both parts are one MPI world, which only srun can make (mpirun sees the first part alone), with the PMI that works with this
# MPI; the ranks of the second part come last. To decide yourself: MPI_TYPE=pmix sbatch ..., or another type of `srun --mpi=list`.
mpi_type=${MPI_TYPE:-$(python -m launcher.slurm.ranks --type)}
echo "ranks on $SLURM_JOB_NODELIST_HET_GROUP_0, server on $SLURM_JOB_NODELIST_HET_GROUP_1, by srun --mpi=$mpi_type"
exec srun --mpi="$mpi_type" --kill-on-bad-exit=1 \
    --het-group=0 "${command[@]}" : \
    --het-group=1 python -m hvdgrab.server

#!/bin/bash
# A training on GPUs: a rank for each, gradients by NCCL.
#
# Checked by shellcheck and `sbatch --test-only` alone: it has not been run on GPUs.
#
#   sbatch slurm/gpus.sh python train.py
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-gpus
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# Two nodes with two GPUs each. On some sites GPUs are asked for by --gres=gpu:2 instead.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
# Cores for a rank: its own threads and its DataLoader's workers.
#SBATCH --cpus-per-task=2
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

# Horovod must have been built with NCCL (`make setup GPU=nccl`); this ends the job at once where it was not.
python -c 'import sys, horovod.torch as hvd; hvd.nccl_built() or sys.exit("this Horovod has no NCCL: make setup GPU=nccl")'
# Every rank sees all GPUs of its node and takes the one of its local rank: torch.cuda.set_device(hvd.local_rank()).
# Which network NCCL takes, and what it says about it; without InfiniBand: NCCL_IB_DISABLE=1.
export NCCL_DEBUG=WARN
# export NCCL_SOCKET_IFNAME=eth0
# The payloads of the ordering go through the host, over MPI, beside NCCL.

# Where metrics.jsonl and checkpoints go; `python -m hvdgrab.report` makes a page of it.
export HVDGRAB_JOB_DIR="$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "results: $HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0, "compression": {"kind": "sketch"}}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    command=(python -m hvdgrab.examples.lstm_wikitext2 --epochs 40 --batch-size 4 --lr 5)
fi

# By srun with the PMI that works with this MPI, or by mpirun where none does; the log says which. To decide yourself:
# MPI_TYPE=pmix sbatch ..., or another type of `srun --mpi=list`, or mpirun.
exec python -m launcher.slurm.ranks --mpi "${MPI_TYPE:-auto}" -- "${command[@]}"

#!/bin/bash
# A training on one node. Submit it as it is, or with a command of your own:
#
#   sbatch slurm/one_node.sh
#   sbatch --ntasks=8 --time=4:00:00 slurm/one_node.sh python train.py --epochs 10
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-one-node
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# One node, so many ranks on it, and so many cores for each rank.
#SBATCH --nodes=1
#SBATCH --ntasks=2
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

# Where metrics.jsonl and checkpoints go; `python -m hvdgrab.report` makes a page of it.
export HVDGRAB_JOB_DIR="$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "results: $HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    command=(python -m hvdgrab.examples.digits --epochs 30 --batch-size 8 --lr 0.1)
fi

# By srun with the PMI that works with this MPI, or by mpirun where none does; the log says which. To decide yourself:
# MPI_TYPE=pmix sbatch ..., or another type of `srun --mpi=list`, or mpirun.
exec python -m launcher.slurm.ranks --mpi "${MPI_TYPE:-auto}" -- "${command[@]}"

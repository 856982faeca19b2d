#!/bin/bash
# Several variants of a training as one array: each is a job of its own, with its own directory.
#
#   sbatch slurm/variants_array.sh
#   sbatch --array=0-5%1 slurm/variants_array.sh python train.py
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-ARRAY_TASK.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-variants
#SBATCH --output=%x-%A_%a.log
#SBATCH --open-mode=append
# One task of the array for each line of `variants` below, at most two at a time.
#SBATCH --array=0-2%2
# Of each: nodes, ranks, cores for a rank.
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
# SLURM kills the job after this time (days-hours:minutes:seconds).
#SBATCH --time=01:00:00
# What your site asks for besides; remove the first # of those that you need.
##SBATCH --partition=cpu
##SBATCH --account=my-project
##SBATCH --mem=16G

# What differs: settings of `grab:`, as JSON.
variants=(
    '{"order": "reshuffle", "seed": 0}'
    '{"order": "rr", "seed": 0}'
    '{"order": "cd-grab", "seed": 0}'
)

set -euo pipefail

# The software: your site's modules, and the environment that `make setup` makes. Nothing is fetched on a compute node.
# module load openmpi
venv=${VENV:-$PWD/.venv}
# shellcheck source=/dev/null
source "$venv/bin/activate" || { echo "no environment in $venv: submit from where it lies, or: VENV=... sbatch ..." >&2; exit 2; }

if ((SLURM_ARRAY_TASK_ID >= ${#variants[@]})); then
    echo "there is no variant $SLURM_ARRAY_TASK_ID: the variants are 0 to $((${#variants[@]} - 1))" >&2
    exit 2
fi
export HVDGRAB_GRAB="${variants[SLURM_ARRAY_TASK_ID]}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# Where metrics.jsonl and checkpoints go: a directory for each variant, side by side.
all=jobs/$SLURM_JOB_NAME-$SLURM_ARRAY_JOB_ID
export HVDGRAB_JOB_DIR="$PWD/$all/$SLURM_ARRAY_TASK_ID"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "variant $SLURM_ARRAY_TASK_ID: $HVDGRAB_GRAB, results: $HVDGRAB_JOB_DIR"
echo "to compare them when all are done: python -m hvdgrab.report $all/*"

command=("$@")
if ((${#command[@]} == 0)); then
    command=(python -m hvdgrab.examples.digits --epochs 30 --batch-size 8 --lr 0.1)
fi

# By srun with the PMI that works with this MPI, or by mpirun where none does; the log says which. To decide yourself:
# MPI_TYPE=pmix sbatch ..., or another type of `srun --mpi=list`, or mpirun.
exec python -m launcher.slurm.ranks --mpi "${MPI_TYPE:-auto}" -- "${command[@]}"

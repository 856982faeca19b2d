#!/bin/bash
# A training with a dedicated order server, packed into the same job: one rank more than train, the last of which does not train
# but decides the order for all others. The training must call hvdgrab.init() instead of hvd.init().
#
#   sbatch slurm/order_server.sh
#   sbatch --nodes=4 --ntasks=33 slurm/order_server.sh python train.py      32 ranks and the server
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-order-server
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# Three ranks that train, and the server behind them.
#SBATCH --nodes=2
#SBATCH --ntasks=4
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
settings='{"order": "cd-grab", "seed": 0, "coordinator": "server"}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    command=(python -m hvdgrab.examples.digits --epochs 30 --batch-size 8 --lr 0.1)
fi

# By srun with the PMI that works with this MPI, or by mpirun where none does; the log says which. To decide yourself:
# MPI_TYPE=pmix sbatch ..., or another type of `srun --mpi=list`, or mpirun.
exec python -m launcher.slurm.ranks --mpi "${MPI_TYPE:-auto}" -- "${command[@]}"

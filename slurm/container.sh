#!/bin/bash
# A training inside a container image (Apptainer; Singularity is the same).
#
# Checked by shellcheck and `sbatch --test-only` alone: it has not been run in a container.
#
#   sbatch slurm/container.sh image.sif python -m hvdgrab.examples.digits --epochs 30
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-container
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# So many nodes, so many ranks on each, and so many cores for each rank.
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

if (($# < 2)); then
    echo "usage: sbatch slurm/container.sh IMAGE COMMAND ..." >&2
    exit 2
fi
image=$1
shift

# srun starts a container for every rank. The MPI inside must speak a PMI that SLURM offers: `srun --mpi=list` shows them. An
# Open MPI inside with PMIx 3 or 4 takes pmix, MPICH pmi2. /dev/shm of the node is visible inside.
mpi_type=${MPI_TYPE:-pmix}

# Where metrics.jsonl and checkpoints go; `python -m hvdgrab.report` makes a page of it.
export HVDGRAB_JOB_DIR="$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "results: $HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

# --nv brings the node's GPUs and their driver in; it does no harm where there are none.
# With Pyxis instead: srun --mpi="$mpi_type" --container-image="$image" --container-mounts="$PWD" "$@"
exec srun --mpi="$mpi_type" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=1 \
    apptainer exec --nv --bind "$PWD" "$image" "$@"

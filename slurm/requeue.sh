#!/bin/bash
# A training that is longer than a job may be: shortly before the time limit it saves itself and ends, and the job goes back into
# the queue, until the training is done. The training must save itself on USR1, and go on from what it has saved when it starts.
#
#   sbatch slurm/requeue.sh python train.py
#
# Options on sbatch's command line win over those below.
#
# The name in squeue. The log is NAME-JOBID.log in the directory from which you submit; a second start is appended.
#SBATCH --job-name=hvdgrab-requeue
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# So many nodes, so many ranks on each, and so many cores for each rank.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
# SLURM may put this job back: after a preemption and a lost node by itself, else because this script asks for it.
#SBATCH --requeue
# SLURM kills the job after this time (days-hours:minutes:seconds).
#SBATCH --time=01:00:00
# What your site asks for besides; remove the first # of those that you need.
##SBATCH --partition=cpu
##SBATCH --account=my-project
##SBATCH --mem=16G

# The job watches its own clock, because SLURM's warning signals may come a minute early or late. Seconds of training; the rest of
# --time is for starting and for saving. Change it together with --time.
train_seconds=${TRAIN_SECONDS:-3300}
# Seconds that the training has to save itself and end.
save_seconds=${SAVE_SECONDS:-180}
# No more starts than this: a training that never ends must not go round for ever.
most_starts=${MOST_STARTS:-100}

set -euo pipefail

# The software: your site's modules, and the environment that `make setup` makes. Nothing is fetched on a compute node.
# module load openmpi
# shellcheck source=/dev/null
source "${VENV:-$PWD/.venv}/bin/activate"

# Where metrics.jsonl and checkpoints go.
export HVDGRAB_JOB_DIR="$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID"
mkdir -p "$HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    echo "usage: sbatch $0 COMMAND ..., a training that saves itself on USR1 and goes on when it is started again" >&2
    exit 2
fi

# USR1 reaches all ranks through srun (or mpirun), and their children too: DataLoader workers must ignore it (worker_init_fn).
code=0
timeout --foreground --signal=USR1 --kill-after="$save_seconds" "$train_seconds" \
    python -m launcher.slurm.ranks -- "${command[@]}" || code=$?

# 124 and 137 are timeout's words for "its time was over". Only then, and only here, is it decided to go on.
starts=$((${SLURM_RESTART_COUNT:-0} + 1))
if ((code == 124 || code == 137)); then
    if ((starts >= most_starts)); then
        echo "the training is not done after $starts starts: given up" >&2
        exit 1
    fi
    echo "start $starts is over, back into the queue"
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

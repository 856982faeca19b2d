#!/bin/bash
# A training that is longer than a job may be: shortly before the time limit it saves itself and ends, and the job goes back into
# the queue, until the training is done.
#
#   sbatch slurm/requeue.sh python train.py
#   CONTINUE=jobs/hvdgrab-requeue-17 sbatch slurm/requeue.sh python train.py     go on from what an earlier job has saved
#
# On USR1 the training must save itself below $HVDGRAB_JOB_DIR and end with exit code 0, all ranks after the same step (see
# hvdgrab.StopSignal; a rank that ends with another code ends the others, who may still be writing). When it starts it must go
# on from what it has saved; hvdgrab.mark_finished() says that nothing is left to do. tests/slurm/saving_program.py is such a
# training.
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
venv=${VENV:-$PWD/.venv}
# shellcheck source=/dev/null
source "$venv/bin/activate" || { echo "no environment in $venv: submit from where it lies, or: VENV=... sbatch ..." >&2; exit 2; }

# Where metrics.jsonl and checkpoints go; `python -m hvdgrab.report` makes a page of it.
export HVDGRAB_JOB_DIR="${CONTINUE:-$PWD/jobs/$SLURM_JOB_NAME-$SLURM_JOB_ID}"
mkdir -p "$HVDGRAB_JOB_DIR"
echo "results: $HVDGRAB_JOB_DIR"

# How the data is ordered: any setting of `grab:` in a job's YAML, as JSON.
settings='{"order": "cd-grab", "seed": 0}'
export HVDGRAB_GRAB="${HVDGRAB_GRAB:-$settings}"
export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"

command=("$@")
if ((${#command[@]} == 0)); then
    echo "usage: sbatch slurm/requeue.sh COMMAND ..., a training that saves itself on USR1 and goes on from there" >&2
    exit 2
fi
starts=$((${SLURM_RESTART_COUNT:-0} + 1))
echo "start $starts of at most $most_starts, USR1 after $train_seconds s"
stamp=$HVDGRAB_JOB_DIR/.started
touch "$stamp"
export HVDGRAB_FINISHED="$HVDGRAB_JOB_DIR/finished.json" # where hvdgrab.mark_finished() leaves its mark
rm -f "$HVDGRAB_FINISHED"

# USR1 reaches all ranks through srun (or mpirun), and their children too: DataLoader workers must ignore it (worker_init_fn).
code=0
began=$SECONDS
timeout --foreground --preserve-status --signal=USR1 --kill-after="$save_seconds" "$train_seconds" \
    python -m launcher.slurm.ranks --mpi "${MPI_TYPE:-auto}" -- "${command[@]}" || code=$?

# Only where its time was over, and only here, is it decided to go on: what ended before is done, or has failed.
if ((SECONDS - began < train_seconds)); then
    exit "$code"
fi
if [[ -e $HVDGRAB_FINISHED ]]; then
    echo "start $starts is over, and the training is done"
    exit 0
fi
case $code in
    0) echo "start $starts is over, the training has ended itself" ;;
    137) echo "start $starts is over: not saved within $save_seconds s, and killed" >&2 ;;
    138)
        echo "USR1 ended the training, which must save itself then: not put back into the queue" >&2
        exit 1
        ;;
    *) echo "start $starts is over: exit code $code" >&2 ;;
esac
if [[ -z $(find "$HVDGRAB_JOB_DIR" -type f -newer "$stamp" ! -name metrics.jsonl -print -quit) ]]; then
    echo "nothing was saved below $HVDGRAB_JOB_DIR in this start, so that the next would get no further: given up" >&2
    exit 1
fi
if ((starts >= most_starts)); then
    echo "the training is not done after $starts starts: given up" >&2
    exit 1
fi
echo "back into the queue"
for pause in 0 10 30 60; do # a controller that is busy may need to be asked again
    sleep "$pause"
    if scontrol requeue "$SLURM_JOB_ID"; then
        sleep 60 # SLURM ends this script meanwhile; an end of its own could be taken for the job's
        exit "$code"
    fi
done
echo "not put back into the queue. To go on: CONTINUE=$HVDGRAB_JOB_DIR sbatch slurm/requeue.sh ..." >&2
exit 1

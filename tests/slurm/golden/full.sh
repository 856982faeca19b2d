#!/bin/bash
# Attempt 3 of job demo-20250102-030405-00ff, written by hvdgrab-launch.
#SBATCH --job-name=demo-20250102-030405-00ff.3
#SBATCH --comment=hvdgrab/demo-20250102-030405-00ff/3/6c543bd907
#SBATCH --output=logs/slurm.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks=8
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=3
#SBATCH --gpus-per-task=1
#SBATCH --mem=8192M
#SBATCH --time=92
#SBATCH --partition=gpu
#SBATCH --account=physics
#SBATCH --qos=long
#SBATCH --constraint=a100&ib
#SBATCH --reservation=school
#SBATCH --clusters=east
#SBATCH --exclude=n7
#SBATCH --mail-type=END
#SBATCH --gres=tmp:1

# slurm.prologue
type module >/dev/null 2>&1 || for file in /etc/profile.d/{lmod,z00_lmod,modules}.sh; do [ ! -r "$file" ] || . "$file"; done
trap 'echo "hvdgrab-launch: line $LINENO, in slurm.prologue, ended with $?" >&2' ERR
set -e
module load openmpi
source venv/bin/activate
set +e
trap - ERR

# Where the launcher is found; nothing is fetched here.
export PYTHONPATH='/opt/a b'

exec /opt/py/bin/python -m launcher.slurm.batch /jobs/demo-20250102-030405-00ff 3

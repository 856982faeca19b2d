#!/bin/bash
# Attempt 3 of job demo-20250102-030405-00ff, written by hvdgrab-launch.
#SBATCH --job-name=demo-20250102-030405-00ff.3
#SBATCH --comment=hvdgrab/demo-20250102-030405-00ff/3/6c543bd907
#SBATCH --output=logs/slurm.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1

exec /opt/py/bin/python -m launcher.slurm.batch /jobs/demo-20250102-030405-00ff 3
